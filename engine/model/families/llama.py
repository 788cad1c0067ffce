"""Llama 2 and 3, and Qwen2 and 2.5, which differ from them by biases and windows."""

from typing import Any

from engine.errors import ConfigError
from engine.model.names import WeightNames
from engine.model.rope import rope_spec, scaled_context
from engine.model.spec import Activation, LayerSpec, ModelSpec, NormSpec

NAMES = WeightNames(
    parts={
        "embedding": "model.embed_tokens",
        "attention_norm": "model.layers.{layer}.input_layernorm",
        "attention.q": "model.layers.{layer}.self_attn.q_proj",
        "attention.k": "model.layers.{layer}.self_attn.k_proj",
        "attention.v": "model.layers.{layer}.self_attn.v_proj",
        "attention.output": "model.layers.{layer}.self_attn.o_proj",
        "mlp_norm": "model.layers.{layer}.post_attention_layernorm",
        "mlp.gate": "model.layers.{layer}.mlp.gate_proj",
        "mlp.up": "model.layers.{layer}.mlp.up_proj",
        "mlp.down": "model.layers.{layer}.mlp.down_proj",
        "final_norm": "model.norm",
        "lm_head": "lm_head",
    },
    renames=((r"^(embed_tokens|layers|norm)\.", r"model.\1."),),
    unused=(r"\.rotary_emb\.inv_freq$",),
)

ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


def gated_activation(name: str) -> Activation:
    if name not in ACTIVATIONS:
        raise ConfigError(f"model: activation '{name}' is not supported; supported: {', '.join(sorted(ACTIVATIONS))}")
    return ACTIVATIONS[name]


def llama_spec(config: Any) -> ModelSpec:
    return ModelSpec(
        architecture="LlamaForCausalLM",
        layers=(LayerSpec(),) * config.num_hidden_layers,
        head_dim=config.head_dim,
        qkv_bias=config.attention_bias,
        attention_output_bias=config.attention_bias,
        mlp_bias=config.mlp_bias,
        **_common(config, config.head_dim),
    )


def qwen2_spec(config: Any) -> ModelSpec:
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    config.head_dim = head_dim  # Qwen2Config has no such field, the rope functions read it
    windows = {"full_attention": 0, "sliding_attention": config.sliding_window or 0}
    return ModelSpec(
        architecture="Qwen2ForCausalLM",
        layers=tuple(LayerSpec(window=windows[layer_type]) for layer_type in config.layer_types),
        head_dim=head_dim,
        qkv_bias=True,
        **_common(config, head_dim),
    )


def _common(config: Any, head_dim: int) -> dict[str, Any]:
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_query_heads": config.num_attention_heads,
        "num_kv_heads": config.num_key_value_heads,
        "ropes": (rope_spec(config),),
        "norm": NormSpec("rms", config.rms_norm_eps),
        "max_model_len": scaled_context(config),
        "activation": gated_activation(config.hidden_act),
        "gated_mlp": True,
        "attention_scale": head_dim**-0.5,
        "tied_embeddings": config.tie_word_embeddings,
        "checkpoint_dtype": str(config.dtype).removeprefix("torch.") if config.dtype else None,
    }

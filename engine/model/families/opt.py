"""OPT: learned positions, LayerNorm, biases everywhere, a plain MLP; opt-350m norms after the branches."""

from typing import Any

from engine.errors import ConfigError
from engine.model.families.llama import ACTIVATIONS
from engine.model.names import WeightNames
from engine.model.spec import Activation, LayerSpec, ModelSpec, NormPlacement, NormSpec

_POSITION_OFFSET = 2  # rows 0 and 1 of the table stood for padding when OPT was trained

NAMES = WeightNames(
    parts={
        "embedding": "model.decoder.embed_tokens",
        "positions": "model.decoder.embed_positions",
        "project_in": "model.decoder.project_in",
        "project_out": "model.decoder.project_out",
        "attention_norm": "model.decoder.layers.{layer}.self_attn_layer_norm",
        "attention.q": "model.decoder.layers.{layer}.self_attn.q_proj",
        "attention.k": "model.decoder.layers.{layer}.self_attn.k_proj",
        "attention.v": "model.decoder.layers.{layer}.self_attn.v_proj",
        "attention.output": "model.decoder.layers.{layer}.self_attn.out_proj",
        "mlp_norm": "model.decoder.layers.{layer}.final_layer_norm",
        "mlp.up": "model.decoder.layers.{layer}.fc1",
        "mlp.down": "model.decoder.layers.{layer}.fc2",
        "final_norm": "model.decoder.final_layer_norm",
        "lm_head": "lm_head",
    },
    renames=((r"^decoder\.", "model.decoder."),),
)


def spec(config: Any) -> ModelSpec:
    activations: dict[str, Activation] = {"relu": "relu", **ACTIVATIONS}
    if config.activation_function not in activations:
        raise ConfigError(f"model: activation '{config.activation_function}' is not supported")
    head_dim = config.hidden_size // config.num_attention_heads
    before = config.do_layer_norm_before
    return ModelSpec(
        architecture="OPTForCausalLM",
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.ffn_dim,
        num_query_heads=config.num_attention_heads,
        num_kv_heads=config.num_attention_heads,
        head_dim=head_dim,
        layers=(LayerSpec(rope=None),) * config.num_hidden_layers,
        ropes=(),
        norm=NormSpec("layer", 1e-5, learned=config.layer_norm_elementwise_affine),
        max_model_len=config.max_position_embeddings,
        activation=activations[config.activation_function],
        gated_mlp=False,
        attention_scale=head_dim**-0.5,
        norm_placement=NormPlacement.BEFORE if before else NormPlacement.AFTER,
        final_norm=before and not config._remove_final_layer_norm,
        qkv_bias=config.enable_bias,
        attention_output_bias=config.enable_bias,
        mlp_bias=config.enable_bias,
        embedding_size=config.word_embed_proj_dim,
        learned_positions=config.max_position_embeddings + _POSITION_OFFSET,
        learned_positions_offset=_POSITION_OFFSET,
        tied_embeddings=config.tie_word_embeddings,
        checkpoint_dtype=str(config.dtype).removeprefix("torch.") if config.dtype else None,
    )

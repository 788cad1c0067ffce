"""Gemma 3: QK-norm, alternating windows and rotations, (1 + w) norms around each branch, scaled embeddings."""

from typing import Any

from engine.errors import ConfigError
from engine.model.families.llama import NAMES as LLAMA_NAMES
from engine.model.families.llama import gated_activation
from engine.model.names import WeightNames
from engine.model.rope import rope_spec
from engine.model.spec import LayerSpec, ModelSpec, NormPlacement, NormSpec

_LAYER_TYPES = ("full_attention", "sliding_attention")  # in the order of ModelSpec.ropes

NAMES = WeightNames(
    parts={
        **LLAMA_NAMES.parts,
        "attention.q_norm": "model.layers.{layer}.self_attn.q_norm",
        "attention.k_norm": "model.layers.{layer}.self_attn.k_norm",
        "attention_post_norm": "model.layers.{layer}.post_attention_layernorm",
        "mlp_norm": "model.layers.{layer}.pre_feedforward_layernorm",
        "mlp_post_norm": "model.layers.{layer}.post_feedforward_layernorm",
    },
    renames=(
        *LLAMA_NAMES.renames,
        (r"^(model\.language_model|language_model\.model)\.", "model."),  # the text half of an image-and-text model
        (r"^language_model\.lm_head\.", "lm_head."),
    ),
    unused=(r"^(model\.)?(vision_tower|multi_modal_projector)\.",),
)


def spec(config: Any) -> ModelSpec:
    config = config.get_text_config()
    if config.use_bidirectional_attention:
        raise ConfigError("model: Gemma 3 with use_bidirectional_attention is not a text generator")
    rope_of = {layer_type: index for index, layer_type in enumerate(_LAYER_TYPES)}
    windows = {"full_attention": 0, "sliding_attention": config.sliding_window or 0}
    return ModelSpec(
        architecture="Gemma3ForCausalLM",
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_query_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        layers=tuple(LayerSpec(windows[kind], rope_of[kind]) for kind in config.layer_types),
        ropes=tuple(rope_spec(config, kind) for kind in _LAYER_TYPES),
        norm=NormSpec("rms", config.rms_norm_eps, one_plus=True),
        max_model_len=config.max_position_embeddings,
        activation=gated_activation(config.hidden_activation),
        gated_mlp=True,
        attention_scale=config.query_pre_attn_scalar**-0.5,
        norm_placement=NormPlacement.SANDWICH,
        qk_norm=True,
        qkv_bias=config.attention_bias,
        attention_output_bias=config.attention_bias,
        embedding_scale=config.hidden_size**0.5,
        tied_embeddings=config.tie_word_embeddings,
        logit_softcap=config.final_logit_softcapping or 0.0,
        checkpoint_dtype=str(config.dtype).removeprefix("torch.") if config.dtype else None,
    )

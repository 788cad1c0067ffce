"""ModernBERT: rotary positions, windows in all but every few layers, gated MLPs, norms before the branches."""

from dataclasses import replace
from typing import Any

from engine.errors import ConfigError
from engine.model.families.bert import encoder_activation, scores_pairs
from engine.model.families.llama import gated_activation
from engine.model.names import WeightNames
from engine.model.rope import rope_spec
from engine.model.spec import LayerSpec, ModelSpec, NormSpec, ScoreHead

# One stored product -> the names that `SplitSource` gives its parts, from the first row to the last.
SPLITS = {"Wqkv": ("Wq", "Wk", "Wv"), "Wi": ("Wgate", "Wup")}
NAMES = WeightNames(
    parts={
        "embedding": "embeddings.tok_embeddings",
        "embedding_norm": "embeddings.norm",
        "attention_norm": "layers.{layer}.attn_norm",
        "attention.q": "layers.{layer}.attn.Wq",
        "attention.k": "layers.{layer}.attn.Wk",
        "attention.v": "layers.{layer}.attn.Wv",
        "attention.output": "layers.{layer}.attn.Wo",
        "mlp_norm": "layers.{layer}.mlp_norm",
        "mlp.gate": "layers.{layer}.mlp.Wgate",
        "mlp.up": "layers.{layer}.mlp.Wup",
        "mlp.down": "layers.{layer}.mlp.Wo",
        "final_norm": "final_norm",
        "score.dense": "head.dense",
        "score.norm": "head.norm",
        "score.output": "classifier",
    },
    renames=((r"^model\.", ""),),
    unused=(r"^head\.", r"^decoder\."),
)


def spec(config: Any) -> ModelSpec:
    head_dim = config.hidden_size // config.num_attention_heads
    config.head_dim = head_dim  # ModernBertConfig has no such field, the rope functions read it
    kinds = sorted(set(config.layer_types))
    windows = {"full_attention": 0, "sliding_attention": config.local_attention // 2 + 1}
    return ModelSpec(
        architecture=config.architectures[0],
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_query_heads=config.num_attention_heads,
        num_kv_heads=config.num_attention_heads,
        head_dim=head_dim,
        layers=tuple(
            LayerSpec(window=windows[kind], rope=kinds.index(kind), attention_norm=index > 0)
            for index, kind in enumerate(config.layer_types)
        ),
        ropes=tuple(rope_spec(config, kind) for kind in kinds),
        norm=NormSpec("layer", config.norm_eps, bias=config.norm_bias),
        max_model_len=config.max_position_embeddings,
        activation=gated_activation(config.hidden_activation),
        gated_mlp=True,
        attention_scale=head_dim**-0.5,
        qkv_bias=config.attention_bias,
        attention_output_bias=config.attention_bias,
        mlp_bias=config.mlp_bias,
        checkpoint_dtype=str(config.dtype).removeprefix("torch.") if config.dtype else None,
        causal=False,
        embedding_norm=True,
        score_head=_score_head(config),
    )


def _score_head(config: Any) -> ScoreHead | None:
    head = scores_pairs(config)
    if head is None:
        return None
    if config.classifier_pooling not in ("cls", "mean"):
        raise ConfigError(f"model: classifier_pooling '{config.classifier_pooling}' is not supported: cls or mean is")
    return replace(
        head,
        pooling=config.classifier_pooling,
        activation=encoder_activation(config.classifier_activation),
        dense_bias=config.classifier_bias,
        norm=True,
    )

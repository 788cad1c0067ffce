"""BERT, RoBERTa and what is built like them (MiniLM, XLM-R): learned positions, token types, norms after branches."""

from collections.abc import Mapping
from typing import Any

from engine.errors import ConfigError
from engine.model.families.llama import ACTIVATIONS
from engine.model.names import WeightNames
from engine.model.spec import Activation, LayerSpec, ModelSpec, NormPlacement, NormSpec, ScoreHead

_PARTS: Mapping[str, str] = {
    "embedding": "embeddings.word_embeddings",
    "positions": "embeddings.position_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "embedding_norm": "embeddings.LayerNorm",
    "attention.q": "encoder.layer.{layer}.attention.self.query",
    "attention.k": "encoder.layer.{layer}.attention.self.key",
    "attention.v": "encoder.layer.{layer}.attention.self.value",
    "attention.output": "encoder.layer.{layer}.attention.output.dense",
    "attention_norm": "encoder.layer.{layer}.attention.output.LayerNorm",
    "mlp.up": "encoder.layer.{layer}.intermediate.dense",
    "mlp.down": "encoder.layer.{layer}.output.dense",
    "mlp_norm": "encoder.layer.{layer}.output.LayerNorm",
}
_RENAMES = (
    (r"^(bert|roberta)\.", ""),
    (r"\.LayerNorm\.gamma$", ".LayerNorm.weight"),
    (r"\.LayerNorm\.beta$", ".LayerNorm.bias"),
)
_UNUSED = (r"^cls\.", r"^lm_head\.", r"\bpooler\.", r"\.position_ids$")

BERT_NAMES = WeightNames(
    {**_PARTS, "score.dense": "pooler.dense", "score.output": "classifier"}, _RENAMES, _UNUSED
)
ROBERTA_NAMES = WeightNames(
    {**_PARTS, "score.dense": "classifier.dense", "score.output": "classifier.out_proj"}, _RENAMES, _UNUSED
)


def bert_spec(config: Any) -> ModelSpec:
    return _spec(config, position_offset=0)


def roberta_spec(config: Any) -> ModelSpec:
    """Its rows up to the padding token's id stand for padding: the first token is at the row after them."""
    return _spec(config, position_offset=config.pad_token_id + 1)


def scores_pairs(config: Any) -> ScoreHead | None:
    """The head of a checkpoint that classifies; None for one that does not. Raises ConfigError unless it has one label.

    Scores go through a sigmoid unless the config names the identity, as CrossEncoder of sentence-transformers does.
    """
    if not any(name.endswith("ForSequenceClassification") for name in config.architectures or ()):
        return None
    if config.num_labels != 1:
        raise ConfigError(f"model: a classifier of {config.num_labels} labels; only one label makes a score")
    own = getattr(config, "sentence_transformers", None) or {}
    named = own.get("activation_fn") or getattr(config, "sbert_ce_default_activation_function", None) or "Sigmoid"
    activation = str(named).rsplit(".", 1)[-1]
    if activation not in ("Sigmoid", "Identity"):
        raise ConfigError(f"model: scores through '{named}' are not supported; supported: Sigmoid, Identity")
    return ScoreHead(pooling="cls", activation="tanh", sigmoid=activation == "Sigmoid")


def encoder_activation(name: str) -> Activation:
    activations: dict[str, Activation] = {"relu": "relu", **ACTIVATIONS}
    if name not in activations:
        raise ConfigError(f"model: activation '{name}' is not supported; supported: {', '.join(sorted(activations))}")
    return activations[name]


def _spec(config: Any, position_offset: int) -> ModelSpec:
    kind = getattr(config, "position_embedding_type", None) or "absolute"
    if kind != "absolute":
        raise ConfigError(f"model: position_embedding_type '{kind}' is not supported; supported: absolute")
    head_dim = config.hidden_size // config.num_attention_heads
    return ModelSpec(
        architecture=config.architectures[0],
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_query_heads=config.num_attention_heads,
        num_kv_heads=config.num_attention_heads,
        head_dim=head_dim,
        layers=(LayerSpec(rope=None),) * config.num_hidden_layers,
        ropes=(),
        norm=NormSpec("layer", config.layer_norm_eps),
        max_model_len=config.max_position_embeddings - position_offset,
        activation=encoder_activation(config.hidden_act),
        gated_mlp=False,
        attention_scale=head_dim**-0.5,
        norm_placement=NormPlacement.AFTER,
        final_norm=False,
        qkv_bias=True,
        attention_output_bias=True,
        mlp_bias=True,
        learned_positions=config.max_position_embeddings,
        learned_positions_offset=position_offset,
        checkpoint_dtype=str(config.dtype).removeprefix("torch.") if config.dtype else None,
        causal=False,
        token_types=config.type_vocab_size,
        embedding_norm=True,
        score_head=scores_pairs(config),
    )

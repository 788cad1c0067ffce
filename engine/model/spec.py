"""ModelSpec: everything the forward pass needs to know of a model, read from its config once.

A new family is a function from its transformers config to a ModelSpec and a map of tensor names
(`engine.model.families`); the decoder never asks which family it runs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Activation = Literal["silu", "gelu", "gelu_tanh", "relu", "tanh"]


class NormPlacement(StrEnum):
    """Where the norms of a branch (attention or MLP) sit; x is the residual stream."""

    BEFORE = "before"      # x + f(norm(x))
    AFTER = "after"        # norm(x + f(x))
    SANDWICH = "sandwich"  # x + norm(f(norm(x)))


@dataclass(frozen=True, slots=True)
class NormSpec:
    kind: Literal["rms", "layer"]
    eps: float
    one_plus: bool = False  # the stored weight is an offset from 1
    learned: bool = True    # False: neither weight nor bias is stored
    bias: bool = True       # of a layer norm


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """One way of rotating queries and keys: the angle of pair i at position p is p · inv_freq[i].

    Two scalings depend on the length of the sequence, counted by `BatchInputs.rope_lengths`. Beyond `original_length`
    "longrope" uses `long_inv_freq` and "dynamic" stretches the base.
    """

    inv_freq: tuple[float, ...]                       # rotary_dim / 2 of them
    attention_factor: float = 1.0                     # multiplies cos and sin
    original_length: int | None = None                # set: lengths beyond it are rotated otherwise
    long_inv_freq: tuple[float, ...] | None = None    # longrope
    ntk_base: float | None = None                     # dynamic: base · (factor · length / original - (factor - 1))^…
    ntk_factor: float | None = None

    @property
    def rotary_dim(self) -> int:
        return 2 * len(self.inv_freq)

    @property
    def depends_on_length(self) -> bool:
        return self.original_length is not None


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What may differ from layer to layer."""

    window: int = 0            # keys a query sees, itself included, in an encoder to either side; 0: all of them
    rope: int | None = 0       # index into ModelSpec.ropes; None: no rotation
    attention_norm: bool = True


@dataclass(frozen=True, slots=True)
class ScoreHead:
    """What a cross-encoder makes of a text's hidden states: output(norm(activation(dense(pooled)))), one number."""

    pooling: Literal["cls", "mean"]
    activation: Activation
    dense_bias: bool = True
    norm: bool = False
    sigmoid: bool = True


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A transformer without its weights: a decoder-only language model or, where it is not causal, an encoder."""

    architecture: str
    vocab_size: int                 # rows of the embedding, padding rows included
    hidden_size: int
    intermediate_size: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    layers: tuple[LayerSpec, ...]
    ropes: tuple[RopeSpec, ...]
    norm: NormSpec
    max_model_len: int              # the longest context the model was made for

    activation: Activation
    gated_mlp: bool                 # down(activation(gate(x)) · up(x)), else down(activation(up(x)))
    attention_scale: float

    norm_placement: NormPlacement = NormPlacement.BEFORE
    final_norm: bool = True
    qk_norm: bool = False
    attention_softcap: float = 0.0  # 0: none
    qkv_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False

    embedding_size: int | None = None     # None: hidden_size; else project_in and project_out lie between
    embedding_scale: float = 1.0
    learned_positions: int = 0            # rows of a learned position table; 0: none
    learned_positions_offset: int = 0     # row of position 0
    tied_embeddings: bool = False
    logit_scale: float = 1.0
    logit_softcap: float = 0.0            # 0: none
    checkpoint_dtype: str | None = None   # as the config says, e.g. "bfloat16"

    causal: bool = True                   # False: an encoder, whose tokens see the whole text; it has no lm_head
    token_types: int = 0                  # rows of a token type table; 0: none
    embedding_norm: bool = False
    score_head: ScoreHead | None = None   # of a cross-encoder

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def query_size(self) -> int:
        return self.num_query_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_dim

    @property
    def qkv_size(self) -> int:
        return self.query_size + 2 * self.kv_size

    @property
    def embedding_width(self) -> int:
        return self.embedding_size or self.hidden_size

    @property
    def rope_depends_on_length(self) -> bool:
        """Whether equal tokens at equal positions may have different keys in longer sequences."""
        return any(rope.depends_on_length for rope in self.ropes)

    @property
    def rope_shared_length(self) -> int | None:
        """Sequences up to this length rotate alike, so may share prefixes; None: all of them."""
        lengths = [rope.original_length for rope in self.ropes if rope.original_length is not None]
        return min(lengths, default=None)


def tensor_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Every tensor the decoder needs, by our own names, e.g. `layers.3.attention.q.weight` -> [rows, columns].

    A tied head is not among them.
    """
    shapes: dict[str, tuple[int, ...]] = {"embedding.weight": (spec.vocab_size, spec.embedding_width)}
    if spec.token_types:
        shapes["token_types.weight"] = (spec.token_types, spec.hidden_size)
    if spec.embedding_norm:
        shapes.update(_norm_shapes(spec, "embedding_norm", spec.hidden_size))
    if spec.learned_positions:
        shapes["positions.weight"] = (spec.learned_positions, spec.hidden_size)
    if spec.embedding_width != spec.hidden_size:
        shapes["project_in.weight"] = (spec.hidden_size, spec.embedding_width)
        shapes["project_out.weight"] = (spec.embedding_width, spec.hidden_size)
    for index in range(spec.num_layers):
        for name, shape in _layer_shapes(spec, spec.layers[index]):
            shapes[f"layers.{index}.{name}"] = shape
    if spec.final_norm:
        shapes.update(_norm_shapes(spec, "final_norm", spec.hidden_size))
    if spec.causal and not spec.tied_embeddings:
        shapes["lm_head.weight"] = (spec.vocab_size, spec.embedding_width)
    if spec.score_head is not None:
        shapes.update(_score_shapes(spec, spec.score_head))
    return shapes


def _score_shapes(spec: ModelSpec, head: ScoreHead) -> dict[str, tuple[int, ...]]:
    hidden = spec.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        "score.dense.weight": (hidden, hidden), "score.output.weight": (1, hidden), "score.output.bias": (1,),
    }  # fmt: skip
    if head.dense_bias:
        shapes["score.dense.bias"] = (hidden,)
    if head.norm:
        shapes.update(_norm_shapes(spec, "score.norm", hidden))
    return shapes


def _layer_shapes(spec: ModelSpec, layer: LayerSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    for name, rows, columns, bias in (
        ("attention.q", spec.query_size, hidden, spec.qkv_bias),
        ("attention.k", spec.kv_size, hidden, spec.qkv_bias),
        ("attention.v", spec.kv_size, hidden, spec.qkv_bias),
        ("attention.output", hidden, spec.query_size, spec.attention_output_bias),
        *([("mlp.gate", inner, hidden, spec.mlp_bias)] if spec.gated_mlp else []),
        ("mlp.up", inner, hidden, spec.mlp_bias),
        ("mlp.down", hidden, inner, spec.mlp_bias),
    ):
        yield f"{name}.weight", (rows, columns)
        if bias:
            yield f"{name}.bias", (rows,)
    if spec.qk_norm:
        yield "attention.q_norm.weight", (spec.head_dim,)
        yield "attention.k_norm.weight", (spec.head_dim,)
    for branch in ("attention", "mlp"):
        if branch == "mlp" or layer.attention_norm:
            yield from _norm_shapes(spec, f"{branch}_norm", hidden).items()
        if spec.norm_placement is NormPlacement.SANDWICH:
            yield from _norm_shapes(spec, f"{branch}_post_norm", hidden).items()


def _norm_shapes(spec: ModelSpec, name: str, size: int) -> Mapping[str, tuple[int, ...]]:
    if not spec.norm.learned:
        return {}
    with_bias = spec.norm.kind == "layer" and spec.norm.bias
    return {f"{name}.{part}": (size,) for part in (("weight", "bias") if with_bias else ("weight",))}

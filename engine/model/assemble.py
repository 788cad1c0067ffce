"""A decoder built from a checkpoint, tensor by tensor: at most two layers exist unpacked at any time."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from engine.errors import ConfigError
from engine.model.decoder import BranchNorms, Decoder, Layer
from engine.model.dtypes import Dtypes
from engine.model.layers.attention import Attention
from engine.model.layers.embedding import Embedding
from engine.model.layers.head import Head
from engine.model.layers.linear import Linear, make_linear
from engine.model.layers.mlp import GATED, MLP, PLAIN
from engine.model.layers.norm import LayerNorm, Norm, RMSNorm
from engine.model.layers.rope import Rotary
from engine.model.spec import LayerSpec, ModelSpec, NormPlacement
from engine.model.weights.checkpoint import Checkpoint

Part = TypeVar("Part")
LOADING_THREADS = 2  # reading and packing overlap; each thread holds one unpacked layer


class Assembler:
    def __init__(
        self,
        spec: ModelSpec,
        checkpoint: Checkpoint,
        dtypes: Dtypes,
        device: torch.device,
        num_valid_tokens: int,
        max_model_len: int,
    ) -> None:
        self._spec, self._checkpoint, self._dtypes, self._device = spec, checkpoint, dtypes, device
        self._num_valid_tokens, self._max_model_len = num_valid_tokens, max_model_len

    @property
    def num_parts(self) -> int:
        return self._spec.num_layers + 2

    def build(self, on_part: Callable[[], None]) -> Decoder:
        """The decoder; `on_part` is called once for each of `num_parts` parts, as it is ready."""
        spec = self._spec

        def done(part: Part) -> Part:
            on_part()
            return part

        with ThreadPoolExecutor(LOADING_THREADS, thread_name_prefix="load") as threads:
            table = self._table("embedding.weight") if self._shares_table else None
            head = threads.submit(lambda: done(self._head(table)))  # the largest part first
            embedding = threads.submit(lambda: done(self._embedding(table)))
            layers = [
                threads.submit(lambda index, layer: done(self._layer(index, layer)), index, layer)
                for index, layer in enumerate(spec.layers)
            ]
            return Decoder(
                spec,
                embedding.result(),
                [Rotary(rope, self._max_model_len, self._device) for rope in spec.ropes],
                [layer.result() for layer in layers],
                self._norm("final_norm") if spec.final_norm else None,
                head.result(),
            )

    @property
    def _shares_table(self) -> bool:
        """Where a head is its weight's own rows and no packed copy of them, one tensor serves it and the embedding."""
        tied, dtypes = self._spec.tied_embeddings, self._dtypes
        return tied and self._device.type != "cpu" and dtypes.table == dtypes.activations

    def _embedding(self, table: Tensor | None) -> Embedding:
        spec, activations = self._spec, self._dtypes.activations
        scale = torch.tensor(spec.embedding_scale, dtype=activations, device=self._device)
        return Embedding(
            spec,
            self._table("embedding.weight") if table is None else table,
            scale if spec.embedding_scale != 1.0 else None,
            self._linear("project_in") if spec.embedding_width != spec.hidden_size else None,
            self._table("positions.weight") if spec.learned_positions else None,
            activations,
        )

    def _head(self, table: Tensor | None) -> Head:
        weight = (self._checkpoint.read("lm_head.weight") if table is None else table)[: self._num_valid_tokens]
        projection = self._linear("project_out") if self._spec.embedding_width != self._spec.hidden_size else None
        return Head(self._spec, self._make_linear(weight, None, "lm_head"), projection)

    def _layer(self, index: int, layer: LayerSpec) -> Layer:
        spec, prefix = self._spec, f"layers.{index}."
        q_norm, k_norm = (
            self._vector(f"{prefix}attention.{name}.weight") if spec.qk_norm else None for name in ("q_norm", "k_norm")
        )
        attention = Attention(
            spec,
            layer,
            self._linear(*(f"{prefix}attention.{part}" for part in "qkv")),
            self._linear(f"{prefix}attention.output"),
            q_norm,
            k_norm,
        )
        inner = ("mlp.gate", "mlp.up") if spec.gated_mlp else ("mlp.up",)
        activation = (GATED if spec.gated_mlp else PLAIN)[spec.activation]
        mlp = MLP(self._linear(*(prefix + part for part in inner)), self._linear(f"{prefix}mlp.down"), activation)
        return Layer(attention, self._branch_norms(f"{prefix}attention"), mlp, self._branch_norms(f"{prefix}mlp"))

    def _branch_norms(self, branch: str) -> BranchNorms:
        norm = self._norm(f"{branch}_norm")
        match self._spec.norm_placement:
            case NormPlacement.BEFORE:
                return BranchNorms(before=norm)
            case NormPlacement.AFTER:
                return BranchNorms(after=norm)
            case NormPlacement.SANDWICH:
                return BranchNorms(before=norm, on_output=self._norm(f"{branch}_post_norm"))

    def _norm(self, name: str) -> Norm:
        spec = self._spec
        if spec.norm.kind == "rms":
            return RMSNorm(spec.norm, self._vector(f"{name}.weight"))
        if spec.norm.learned:
            return LayerNorm(spec.norm, self._vector(f"{name}.weight"), self._vector(f"{name}.bias"))
        ones = torch.ones(spec.hidden_size, dtype=self._dtypes.activations, device=self._device)
        return LayerNorm(spec.norm, ones, torch.zeros_like(ones))

    def _linear(self, *names: str) -> Linear:
        """One product of the tensors of `names`, stacked along their rows."""
        weights = [self._checkpoint.read(f"{name}.weight") for name in names]
        biases = [self._checkpoint.read(f"{name}.bias") for name in names if f"{name}.bias" in self._checkpoint]
        weight = weights[0] if len(weights) == 1 else torch.cat(weights)
        return self._make_linear(weight, torch.cat(biases) if biases else None, " + ".join(names))

    def _make_linear(self, weight: Tensor, bias: Tensor | None, name: str) -> Linear:
        try:
            return make_linear(weight, bias, self._dtypes, self._device)
        except ValueError as error:  # a value that the dtype cannot hold
            raise ConfigError(f"dtype: {self._dtypes.weights} does not suit {name}: {error}") from error

    def _table(self, name: str) -> Tensor:
        """An embedding table; a copy, since the file's memory must not stay mapped."""
        return self._checkpoint.read(name).to(self._device, self._dtypes.table, copy=True)

    def _vector(self, name: str) -> Tensor:
        return self._checkpoint.read(name).to(self._device, self._dtypes.activations, copy=True)

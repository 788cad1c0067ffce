"""Parts of a model made from a checkpoint's tensors: what decoders and encoders are put together from."""

import torch
from torch import Tensor

from engine.errors import ConfigError
from engine.model.dtypes import Dtypes
from engine.model.layers.branch import BranchNorms
from engine.model.layers.embedding import Embedding
from engine.model.layers.linear import ActivatedLinear, Linear, gate_of, make_linear
from engine.model.layers.mlp import MLP, PLAIN
from engine.model.layers.norm import LayerNorm, Norm, RMSNorm
from engine.model.spec import ModelSpec, NormPlacement
from engine.model.weights.checkpoint import Checkpoint
from engine.model.weights.rows import Stacked, copied
from kernels.cpu.packed import Gate, Rows


class Parts:
    def __init__(
        self,
        spec: ModelSpec,
        checkpoint: Checkpoint,
        dtypes: Dtypes,
        device: torch.device,
        max_model_len: int,
    ) -> None:
        self._spec, self._checkpoint, self._dtypes, self._device = spec, checkpoint, dtypes, device
        self._max_model_len = max_model_len

    def _embedding(self, table: Tensor | None = None) -> Embedding:
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

    def _attention_products(self, prefix: str) -> tuple[Linear, Linear]:
        """(query, key and value rows one below the other; output)"""
        return self._linear(*(f"{prefix}attention.{part}" for part in "qkv")), self._linear(f"{prefix}attention.output")

    def _mlp(self, prefix: str) -> MLP:
        spec = self._spec
        if spec.gated_mlp:
            inner = self._linear(f"{prefix}mlp.gate", f"{prefix}mlp.up", gate=gate_of(spec.activation))
        else:
            inner = ActivatedLinear(self._linear(f"{prefix}mlp.up"), PLAIN[spec.activation])
        return MLP(inner, self._linear(f"{prefix}mlp.down"))

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
            bias = self._vector(f"{name}.bias") if spec.norm.bias else None
            return LayerNorm(spec.norm, self._vector(f"{name}.weight"), bias)
        ones = torch.ones(spec.hidden_size, dtype=self._dtypes.activations, device=self._device)
        return LayerNorm(spec.norm, ones, torch.zeros_like(ones))

    def _linear(self, *names: str, gate: Gate | None = None) -> Linear:
        """One product of the tensors of `names`, stacked along their rows."""
        weights = [self._checkpoint.rows(f"{name}.weight") for name in names]
        biases = [self._checkpoint.read(f"{name}.bias") for name in names if f"{name}.bias" in self._checkpoint]
        weight = weights[0] if len(weights) == 1 else Stacked(weights)
        return self._make_linear(weight, torch.cat(biases) if biases else None, " + ".join(names), gate)

    def _make_linear(self, weight: Rows, bias: Tensor | None, name: str, gate: Gate | None = None) -> Linear:
        try:
            return make_linear(weight, bias, self._dtypes, self._device, gate)
        except ValueError as error:  # a value that the dtype cannot hold
            raise ConfigError(f"dtype: {self._dtypes.weights} does not suit {name}: {error}") from error

    def _table(self, name: str) -> Tensor:
        """An embedding table; a copy, since the file's memory must not stay mapped."""
        return copied(self._checkpoint.rows(name), self._device, self._dtypes.table)

    def _vector(self, name: str) -> Tensor:
        return self._checkpoint.read(name).to(self._device, self._dtypes.activations, copy=True)

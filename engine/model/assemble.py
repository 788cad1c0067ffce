"""A decoder built from a checkpoint, tensor by tensor: at most two layers exist unpacked at any time."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from engine.model.decoder import Decoder, Layer
from engine.model.dtypes import Dtypes
from engine.model.layers.attention import Attention
from engine.model.layers.head import Head
from engine.model.layers.rope import Rotary
from engine.model.parts import Parts
from engine.model.spec import LayerSpec, ModelSpec
from engine.model.weights.checkpoint import Checkpoint
from engine.model.weights.rows import Stacked
from kernels.cpu.packed import Rows

Part = TypeVar("Part")
LOADING_THREADS = 2  # reading and packing overlap; each thread holds one unpacked layer


class Assembler(Parts):
    def __init__(
        self,
        spec: ModelSpec,
        checkpoint: Checkpoint,
        dtypes: Dtypes,
        device: torch.device,
        num_valid_tokens: int,
        max_model_len: int,
    ) -> None:
        super().__init__(spec, checkpoint, dtypes, device, max_model_len)
        self._num_valid_tokens = num_valid_tokens

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

    def _head(self, table: Tensor | None) -> Head:
        weight: Rows = self._checkpoint.rows("lm_head.weight") if table is None else table
        weight = Stacked([weight], self._num_valid_tokens)
        projection = self._linear("project_out") if self._spec.embedding_width != self._spec.hidden_size else None
        return Head(self._spec, self._make_linear(weight, None, "lm_head"), projection)

    def _layer(self, index: int, layer: LayerSpec) -> Layer:
        spec, prefix = self._spec, f"layers.{index}."
        q_norm, k_norm = (
            self._vector(f"{prefix}attention.{name}.weight") if spec.qk_norm else None for name in ("q_norm", "k_norm")
        )
        attention = Attention(spec, layer, *self._attention_products(prefix), q_norm, k_norm)
        return Layer(
            attention, self._branch_norms(f"{prefix}attention"), self._mlp(prefix), self._branch_norms(f"{prefix}mlp")
        )

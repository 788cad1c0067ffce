"""Checkpoint: a source's tensors under the decoder's names, checked as a whole before one is read."""

import logging

import torch
from torch import Tensor

from engine.errors import ConfigError
from engine.model.names import WeightNames
from engine.model.spec import ModelSpec, tensor_shapes
from engine.model.weights.source import TensorSource
from kernels.cpu.packed import Rows

_EMBEDDING, _HEAD = "embedding.weight", "lm_head.weight"
_log = logging.getLogger(__name__)


class Checkpoint:
    """Raises ConfigError naming the first tensor that is missing or misshapen; warns of those that nothing uses.

    Tied embeddings follow transformers: one of the two tensors is enough and serves as both; where both are stored
    and differ, both count.
    """

    def __init__(self, spec: ModelSpec, names: WeightNames, source: TensorSource) -> None:
        self._source, self._has_head = source, spec.causal
        spelled = {names.canonical(stored): stored for stored in source.tensors}
        self._stored = {}  # our name -> name in the file
        for name in (*tensor_shapes(spec), *([_HEAD] if spec.causal else [])):
            if names.stored(name) in spelled:
                self._stored[name] = spelled[names.stored(name)]
        if spec.causal and spec.tied_embeddings:
            self._tie()
        shapes = tensor_shapes(spec)
        if spec.causal:
            shapes[_HEAD] = (spec.vocab_size, spec.embedding_width)
        for name, shape in shapes.items():
            self._check(name, names.stored(name), shape)
        self._warn_of_unused(names)

    def read(self, name: str) -> Tensor:
        """One of the decoder's tensors, by our name, in whatever floating dtype it is stored."""
        return self._source.read(self._stored[name])

    def rows(self, name: str) -> Rows:
        """The same tensor, read some rows at a time."""
        return self._source.rows(self._stored[name])

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    @property
    def head_is_embedding(self) -> bool:
        return self._stored[_HEAD] == self._stored[_EMBEDDING]

    def _tie(self) -> None:
        embedding, head = self._stored.get(_EMBEDDING), self._stored.get(_HEAD)
        if embedding is None and head is not None:
            self._stored[_EMBEDDING] = head
        elif embedding is not None and head is None:
            self._stored[_HEAD] = embedding
        elif embedding is not None and head is not None:
            if torch.equal(self._source.read(embedding), self._source.read(head)):
                self._stored[_HEAD] = embedding
            else:
                _log.warning("config ties the embeddings, but %s differs from %s: both are used", head, embedding)

    def _check(self, name: str, stored_name: str, shape: tuple[int, ...]) -> None:
        if name not in self._stored:
            raise ConfigError(f"model: the checkpoint holds no tensor {stored_name}")
        found = self._source.tensors[self._stored[name]]
        if found.shape != shape:
            raise ConfigError(
                f"model: tensor {self._stored[name]} of {found.file} has shape {list(found.shape)}; "
                f"the config makes it {list(shape)}"
            )

    def _warn_of_unused(self, names: WeightNames) -> None:
        used = set(self._stored.values())
        unused = [
            stored for stored in self._source.tensors
            if stored not in used and not names.is_unused(stored)
            and not (self._has_head and names.canonical(stored) == names.stored(_HEAD))
        ]  # fmt: skip
        if unused:
            _log.warning("%d stored tensors are not used by this model, e.g. %s", len(unused), ", ".join(unused[:8]))

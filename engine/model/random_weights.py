"""Random weights of a real shape: a model's speed and memory without its checkpoint."""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from engine.model.names import WeightNames
from engine.model.shapes import PREFIX, SHAPES
from engine.model.spec import ModelSpec, tensor_shapes
from engine.model.weights.source import StoredTensor


class RandomSource:
    """A TensorSource whose tensors depend on seed, name and kind of device only, not on the order of reading.

    Matrices keep the variance of what they multiply, so activations stay in range however deep the model; norms lie
    around 1. On a GPU tensors are made there, in the dtype they are used in: eight billion numbers take a second.
    """

    def __init__(
        self, spec: ModelSpec, names: WeightNames, where: str, *, seed: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self._seed, self._device, self._dtype = seed, device, dtype
        self.tensors: Mapping[str, StoredTensor] = {
            names.stored(name): StoredTensor(shape, where) for name, shape in tensor_shapes(spec).items()
        }

    def rows(self, name: str) -> Tensor:
        return self.read(name)

    def read(self, name: str) -> Tensor:
        shape = self.tensors[name].shape
        generator = torch.Generator(self._device).manual_seed(_seed_of(self._seed, name))
        values = torch.randn(shape, generator=generator, device=self._device, dtype=self._dtype)
        if len(shape) == 2:
            return values.mul_(shape[1] ** -0.5)
        values.mul_(0.1)
        return values if name.endswith(".bias") else values.add_(1.0)


def shape_config(model: str) -> Any:
    """The transformers config that `random:<shape>` means, for a shape in SHAPES."""
    from transformers import AutoConfig

    settings = dict(SHAPES[model.removeprefix(PREFIX)])
    return AutoConfig.for_model(settings.pop("model_type"), **settings)


def _seed_of(seed: int, name: str) -> int:
    """63 bits: what every generator takes."""
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1

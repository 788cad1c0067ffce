"""Normalisation over the hidden size, alone or together with the addition to the residual stream before it."""

from typing import Protocol

from torch import Tensor

from engine.model.spec import NormSpec
from kernels import ops


class Norm(Protocol):
    def __call__(self, x: Tensor) -> Tensor: ...

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual += x in place; the norm of that sum."""


class RMSNorm:
    def __init__(self, spec: NormSpec, weight: Tensor) -> None:
        self._weight, self._eps, self._one_plus = weight, spec.eps, spec.one_plus

    def __call__(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self._weight, self._eps, self._one_plus)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        return ops.add_rms_norm(x, residual, self._weight, self._eps, self._one_plus)


class LayerNorm:
    def __init__(self, spec: NormSpec, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias, self._eps = weight, bias, spec.eps

    def __call__(self, x: Tensor) -> Tensor:
        return ops.layer_norm(x, self._weight, self._bias, self._eps)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        return self(residual.add_(x))

"""A linear layer in the form its device computes fastest: packed by `kernels.cpu` on a CPU, dense on a GPU."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.model.dtypes import Dtypes
from engine.model.spec import Activation
from kernels import ops
from kernels.cpu.packed import Gate, Rows

GATED: Mapping[Gate, Callable[[Tensor], Tensor]] = MappingProxyType({  # [num_tokens, 2 · out], gates first -> […, out]
    "silu": ops.silu_and_mul,
    "gelu": partial(ops.gelu_and_mul, approximate="none"),
    "gelu_tanh": partial(ops.gelu_and_mul, approximate="tanh"),
})


def gate_of(activation: Activation) -> Gate:
    """The same word: families refuse models with other gates."""
    [gate] = [gate for gate in GATED if gate == activation]
    return gate


class Linear(Protocol):
    """x [num_tokens, in] -> [num_tokens, out]"""

    @property
    def nbytes(self) -> int: ...

    def __call__(self, x: Tensor) -> Tensor: ...


class DenseLinear:
    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias  # [out, in], [out]

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + (self.bias.nbytes if self.bias is not None else 0)

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class ActivatedLinear:
    """A product, and a function of its result."""

    def __init__(self, linear: Linear, activation: Callable[[Tensor], Tensor]) -> None:
        self._linear, self._activation = linear, activation

    @property
    def nbytes(self) -> int:
        return self._linear.nbytes

    def __call__(self, x: Tensor) -> Tensor:
        return self._activation(self._linear(x))


def make_linear(
    weight: Rows, bias: Tensor | None, dtypes: Dtypes, device: torch.device, gate: Gate | None = None
) -> Linear:
    """A layer of `weight` [out, in], which may be in any floating dtype and is not kept in that form.

    With a gate, the upper half of a weight [2 · out, in] makes gates, and its lower half what they gate.
    """
    if device.type == "cpu":
        from kernels.cpu.linear import pack

        return pack(weight, bias, dtypes.weights, gate)
    dense = DenseLinear(
        weight[:].to(device, dtypes.activations), None if bias is None else bias.to(device, dtypes.activations)
    )
    return dense if gate is None else ActivatedLinear(dense, GATED[gate])

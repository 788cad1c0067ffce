"""A linear layer in the form its device computes fastest: packed by `kernels.cpu` on a CPU, dense on a GPU."""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.model.dtypes import Dtypes
from kernels.cpu.packed import Rows


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


def make_linear(weight: Rows, bias: Tensor | None, dtypes: Dtypes, device: torch.device) -> Linear:
    """A layer of `weight` [out, in], which may be in any floating dtype and is not kept in that form."""
    if device.type == "cpu":
        from kernels.cpu.linear import pack

        return pack(weight, bias, dtypes.weights)
    dense = weight[:].to(device, dtypes.activations)
    return DenseLinear(dense, None if bias is None else bias.to(device, dtypes.activations))

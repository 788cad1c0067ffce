"""A linear layer with float32 weights: torch's own product.

BLAS cuts the rows into tiles, of which tiles of some heights round differently; padded to a multiple of 4 rows, only
heights that agree occur.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from kernels.cpu.activation import gated
from kernels.cpu.packed import Gate, PackedLinear, Rows

_ELEMENTS_AT_A_TIME = 1 << 18


class Float32Linear(PackedLinear):
    """Rows are padded by torch, which is why no step with it is recorded."""

    dtype = "float32"

    def __init__(self, weight: Rows, bias: Tensor | None, gate: Gate | None = None) -> None:
        super().__init__(weight, bias, gate)
        self._weight, self._bias, self._gate = torch.empty(*weight.shape), bias, gate
        step = max(1, _ELEMENTS_AT_A_TIME // self.num_inputs)
        for first in range(0, weight.shape[0], step):
            self._weight[first : first + step] = weight[first : first + step].detach()

    @staticmethod
    def weight_bytes(num_rows: int, num_inputs: int) -> int:
        return 4 * num_rows * num_inputs

    def __call__(self, x: Tensor) -> Tensor:
        missing = -x.shape[0] % 4
        rows = pad(x, (0, 0, 0, missing)) if missing else x
        out = linear(rows.contiguous(), self._weight, self._bias)[: x.shape[0]]
        return out if self._gate is None else gated(out, self._gate)

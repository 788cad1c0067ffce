"""Linear layers on a CPU: one packed weight each, as float32, float16 or int8, and one product.

A row of the product has the same bits whatever rows are beside it: the two narrow forms sum in one order whatever the
number of rows (`register_tile`); for float32, BLAS cuts the rows into tiles, of which tiles of some heights round
differently, so the row count is padded until only heights that agree occur.

float32   torch's own product, row count padded to a multiple of 4
float16   weights rounded to float16 (relative error 2e-4), sums in float32
int8      weights and activations of 8 bits, with scales for groups of 128; relative error 1e-2
"""

import platform
from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from kernels.cpu.host import has
from kernels.cpu.linear_float16 import Float16Weights
from kernels.cpu.linear_int8 import GROUP, Int8Weights
from kernels.cpu.panels import round_up
from kernels.cpu.register_tile import PANEL

WeightDtype = Literal["float32", "float16", "int8"]


def storage_dtype(dtype: WeightDtype) -> WeightDtype:
    """The form `pack` really uses here: float32 where the processor lacks the instructions of the narrow ones."""
    narrow = platform.machine() == "x86_64" and has("avx2") and has("fma") and has("f16c")
    return dtype if narrow else "float32"


def weight_bytes(num_outputs: int, num_inputs: int, dtype: WeightDtype) -> int:
    """The memory that packing a [num_outputs, num_inputs] weight takes, without a bias."""
    match storage_dtype(dtype):
        case "float32":
            return 4 * num_outputs * num_inputs
        case "float16":
            return 2 * round_up(num_outputs, PANEL) * num_inputs
        case "int8":
            num_groups = -(-num_inputs // GROUP)
            return round_up(num_outputs, PANEL) * num_groups * (GROUP + 4)


class PackedLinear(ABC):
    """A linear layer in its packed form: x [T, K] float32 -> [T, N] float32."""

    dtype: WeightDtype

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.num_outputs, self.num_inputs = weight.shape
        self.nbytes = weight_bytes(self.num_outputs, self.num_inputs, self.dtype)
        self.nbytes += 0 if bias is None else 4 * bias.numel()

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor: ...


def pack(weight: Tensor, bias: Tensor | None, dtype: WeightDtype) -> PackedLinear:
    """Packs a weight [N, K] (any float dtype) and its bias [N]; the caller then drops its own copy.

    float16 refuses weights beyond its range: saturating would serve another model without a word.
    """
    forms: dict[WeightDtype, type[PackedLinear]] = {
        "float32": _Float32Linear, "float16": _Float16Linear, "int8": _Int8Linear,
    }  # fmt: skip
    return forms[storage_dtype(dtype)](weight.detach(), None if bias is None else bias.detach().float())


class _Float32Linear(PackedLinear):
    dtype = "float32"

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        self._weight, self._bias = weight.float().contiguous(), bias

    def __call__(self, x: Tensor) -> Tensor:
        missing = -x.shape[0] % 4
        rows = pad(x, (0, 0, 0, missing)) if missing else x
        return linear(rows.contiguous(), self._weight, self._bias)[: x.shape[0]]


class _Float16Linear(PackedLinear):
    dtype = "float16"

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        limit, (low, high) = torch.finfo(torch.float16).max, map(float, weight.aminmax())
        if not (low >= -limit and high <= limit):
            raise ValueError(f"float16 weights reach ±{limit:.0f}, got {low} to {high}; float32 holds this weight")
        self._weights = Float16Weights(weight, bias)

    def __call__(self, x: Tensor) -> Tensor:
        return self._weights(x.contiguous())


class _Int8Linear(PackedLinear):
    dtype = "int8"

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        self._weights = Int8Weights(weight, bias)

    def __call__(self, x: Tensor) -> Tensor:
        return self._weights(x.contiguous())

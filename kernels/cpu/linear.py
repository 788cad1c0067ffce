"""Linear layers on a CPU: one packed weight each, as float32, float16, bfloat16 or int8.

A row of the product has the same bits whatever rows are beside it: sums run in one order whatever the number of rows
(`register_tile`).

float32   weights as they are
float16   weights rounded to float16 (relative error 2e-4), sums in float32
bfloat16  weights and activations rounded to bfloat16 (relative error 2e-3), sums in float32; twice as fast as float16
          where the processor multiplies it fast, and the same bits where it does not
int8      weights and activations of 8 bits, with scales for groups of 128; relative error 1e-2
"""

import platform
from collections.abc import Mapping
from types import MappingProxyType

from torch import Tensor

from kernels.cpu.host import has
from kernels.cpu.linear_bfloat16 import Bfloat16Linear
from kernels.cpu.linear_float16 import Float16Linear
from kernels.cpu.linear_float32 import Float32Linear
from kernels.cpu.linear_int8 import Int8Linear
from kernels.cpu.packed import Gate, PackedLinear, Rows, WeightDtype

_FORMS: Mapping[WeightDtype, type[PackedLinear]] = MappingProxyType(
    {form.dtype: form for form in (Float32Linear, Float16Linear, Bfloat16Linear, Int8Linear)}
)


def storage_dtype(dtype: WeightDtype) -> WeightDtype:
    """The form `pack` really uses here: float32 where the processor lacks the instructions of the narrow ones."""
    narrow = platform.machine() == "x86_64" and has("avx2") and has("fma") and has("f16c")
    return dtype if narrow else "float32"


def weight_bytes(num_outputs: int, num_inputs: int, dtype: WeightDtype) -> int:
    """The memory that packing a [num_outputs, num_inputs] weight takes, without a bias."""
    return _FORMS[storage_dtype(dtype)].weight_bytes(num_outputs, num_inputs)


def pack(weight: Rows, bias: Tensor | None, dtype: WeightDtype, gate: Gate | None = None) -> PackedLinear:
    """Packs a weight [N, K] (any float dtype) and its bias [N]; the caller then drops its own copy.

    With a gate, the weight is that of an MLP's gates and, below them, of what they gate: [2 · N, K].

    Raises ValueError where the weight is beyond the range of float16.
    """
    return _FORMS[storage_dtype(dtype)](weight, None if bias is None else bias.detach().float(), gate)

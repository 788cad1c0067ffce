"""The functions that gate an MLP, on the 16-lane vector."""

from collections.abc import Mapping
from types import MappingProxyType

from kernels.cpu.jit import kernel
from kernels.cpu.packed import Gate
from kernels.cpu.simd import add, mul
from kernels.cpu.vector_math import erf, number, sigmoid

_SILU, _GELU_TANH, _GELU = range(3)
GATES: Mapping[Gate, int] = MappingProxyType({"silu": _SILU, "gelu_tanh": _GELU_TANH, "gelu": _GELU})  # for kernels


@kernel
def activate(x, kind):
    """Which function, `kind` says: a value of GATES."""
    if kind == _SILU:
        return mul(x, sigmoid(x))
    if kind == _GELU_TANH:  # (1 + tanh(u)) / 2 = sigmoid(2u), u = sqrt(2 / pi) * (x + 0.044715 x³)
        cubic = add(mul(mul(mul(x, x), x), number(0.044715)), x)
        return mul(x, sigmoid(mul(cubic, number(1.5957691216057308))))
    return mul(x, add(mul(erf(mul(x, number(0.7071067811865476))), number(0.5)), number(0.5)))

"""Products of two bfloat16 numbers a lane, added to float32 sums one after the other."""

from typing import Any

from llvmlite import ir
from llvmlite.binding import initialize_native_asmparser

from kernels.cpu.host import has
from kernels.cpu.register_tile import FLOATS, I32, INTS, add_product

initialize_native_asmparser()
FAST = has("avx512bf16")  # twice the products of a float32 multiply-add


def add_pair_dot(builder: Any, sums: Any, weights: Any, x: Any) -> Any:
    """sums + the products of the upper halves + those of the lower halves; weights and x are bits of pairs, int32 x 16.

    A product of two bfloat16 is a float32: each of the two additions rounds, once, and the instruction differs from
    the multiply-adds in subnormal numbers alone, which it takes for zeros.
    """
    if FAST:
        # Written out, for what LLVM calls it, and on which types, changes with its versions.
        function_type = ir.FunctionType(FLOATS, [INTS, INTS, FLOATS])
        return builder.asm(function_type, "vdpbf16ps $2, $1, $0", "=v,v,v,0", [weights, x, sums], side_effect=False)
    for half in (_upper, _lower):
        sums = add_product(builder, sums, half(builder, weights), half(builder, x))
    return sums


def _upper(builder: Any, pairs: Any) -> Any:
    mask = ir.Constant(INTS, [ir.Constant(I32, -1 << 16)] * INTS.count)
    return builder.bitcast(builder.and_(pairs, mask), FLOATS)


def _lower(builder: Any, pairs: Any) -> Any:
    return builder.bitcast(builder.shl(pairs, ir.Constant(INTS, [16] * INTS.count)), FLOATS)

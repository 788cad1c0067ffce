"""Products of two bfloat16 numbers a lane, added to float32 sums one after the other.

By one instruction where that is the faster way, else by two multiply-adds: the bits are the same. AMD's processors do
the instruction in the time of one multiply-add (measured on Zen 5); on an Intel Xeon (Emerald Rapids) it takes longer
than two, and other makers' have not been measured.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from llvmlite.binding import initialize_native_asmparser

from kernels.cpu import host
from kernels.cpu.register_tile import FLOATS, I32, INDEX, INTS, Addresses, add_product, offset

initialize_native_asmparser()
BY_INSTRUCTION = host.has("avx512bf16") and host.name().startswith("znver")
X_DTYPE = np.uint16 if BY_INSTRUCTION else np.float32  # of rounded numbers: multiply-adds take them as they lie


def pair_at(builder: Any, address: Addresses, argument: int, pair: Any) -> Any:
    """Pair number `pair` of an array of X_DTYPE in every lane, as `add_pair_dot` takes it."""
    if BY_INSTRUCTION:
        return address.spread(argument, pair, INTS)
    return [address.spread(argument, offset(builder, INDEX(half), (pair, 2))) for half in (1, 0)]


def add_pair_dot(builder: Any, sums: Any, weights: Any, x: Any) -> Any:
    """sums + the products of the upper halves + those of the lower halves; weights are bits of pairs, int32 x 16.

    A product of two bfloat16 is a float32: each of the two additions rounds, once, and the instruction differs from
    the multiply-adds in subnormal numbers alone, which it takes for zeros.
    """
    if BY_INSTRUCTION:
        # Written out, for what LLVM calls it, and on which types, changes with its versions.
        function_type = ir.FunctionType(FLOATS, [INTS, INTS, FLOATS])
        return builder.asm(function_type, "vdpbf16ps $2, $1, $0", "=v,v,v,0", [weights, x, sums], side_effect=False)
    for half, factor in zip((_upper, _lower), x, strict=True):
        sums = add_product(builder, sums, half(builder, weights), factor)
    return sums


def _upper(builder: Any, pairs: Any) -> Any:
    mask = ir.Constant(INTS, [ir.Constant(I32, -1 << 16)] * INTS.count)
    return builder.bitcast(builder.and_(pairs, mask), FLOATS)


def _lower(builder: Any, pairs: Any) -> Any:
    return builder.bitcast(builder.shl(pairs, ir.Constant(INTS, [16] * INTS.count)), FLOATS)

"""Products of four bytes a lane, summed exactly in 32 bits, by whichever instruction the processor has."""

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from kernels.cpu.host import has
from kernels.cpu.simd import LANES

EXACT = has("avx512vnni") or has("avxvnni")  # else pairs of products saturate beyond 16 bits: 2 · 127 · 127 fits
_I32 = ir.IntType(32)


def call(builder: Any, name: str, result: Any, *args: Any) -> Any:
    """The LLVM intrinsic `name`."""
    function_type = ir.FunctionType(result, [arg.type for arg in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), args)


def add_dot(builder: Any, sums: Any, weights: Any, x: Any) -> Any:
    """sums + the four products of unsigned bytes of `weights` and signed bytes of `x`; all int32 x 16."""
    if has("avx512vnni"):
        return call(builder, "llvm.x86.avx512.vpdpbusd.512", sums.type, sums, weights, x)
    if has("avx512bw") and not EXACT:
        return _by_pairs(builder, "llvm.x86.avx512.pmaddubs.w.512", "llvm.x86.avx512.pmaddw.d.512", sums, weights, x)
    halves = [_half_dot(builder, *(_half(builder, v, first) for v in (sums, weights, x))) for first in (0, LANES // 2)]
    return builder.shuffle_vector(*halves, ir.Constant(ir.VectorType(_I32, LANES), list(range(LANES))))


def _half_dot(builder: Any, sums: Any, weights: Any, x: Any) -> Any:
    if has("avxvnni"):
        return call(builder, "llvm.x86.avx512.vpdpbusd.256", sums.type, sums, weights, x)
    return _by_pairs(builder, "llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd", sums, weights, x)


def _half(builder: Any, vector: Any, first: int) -> Any:
    lanes = list(range(first, first + LANES // 2))
    return builder.shuffle_vector(vector, vector, ir.Constant(ir.VectorType(_I32, len(lanes)), lanes))


def _by_pairs(builder: Any, multiply_bytes: str, add_words: str, sums: Any, weights: Any, x: Any) -> Any:
    lanes = sums.type.count
    as_bytes, as_words = ir.VectorType(ir.IntType(8), 4 * lanes), ir.VectorType(ir.IntType(16), 2 * lanes)
    pairs = call(builder, multiply_bytes, as_words, builder.bitcast(weights, as_bytes), builder.bitcast(x, as_bytes))
    ones = ir.Constant(as_words, [1] * (2 * lanes))
    return builder.add(sums, call(builder, add_words, sums.type, pairs, ones))

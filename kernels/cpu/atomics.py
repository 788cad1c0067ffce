"""Atomic operations on int64 arrays for numba kernels, all sequentially consistent, and what waiting loops need."""

import platform
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from kernels.cpu.simd import element_pointer

_I64 = ir.IntType(64)
_ORDER = "seq_cst"


def _word(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    return element_pointer(context, builder, signature.args[0], args[0], args[1], _I64)


@intrinsic
def atomic_load(typing_context, array, index):
    def codegen(context, builder, signature, args):
        return builder.load_atomic(_word(context, builder, signature, args), _ORDER, 8)

    return types.int64(array, types.intp), codegen


@intrinsic
def atomic_store(typing_context, array, index, value):
    def codegen(context, builder, signature, args):
        builder.store_atomic(args[2], _word(context, builder, signature, args), _ORDER, 8)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.int64), codegen


@intrinsic
def atomic_add(typing_context, array, index, value):
    """array[index] += value; returns what it was."""

    def codegen(context, builder, signature, args):
        return builder.atomic_rmw("add", _word(context, builder, signature, args), args[2], _ORDER)

    return types.int64(array, types.intp, types.int64), codegen


@intrinsic
def atomic_exchange(typing_context, array, index, value):
    """array[index] = value; returns what it was."""

    def codegen(context, builder, signature, args):
        return builder.atomic_rmw("xchg", _word(context, builder, signature, args), args[2], _ORDER)

    return types.int64(array, types.intp, types.int64), codegen


@intrinsic
def atomic_replace(typing_context, array, index, expected, value):
    """array[index] = value if it is `expected`; returns whether it was."""

    def codegen(context, builder, signature, args):
        word = _word(context, builder, signature, args)
        return builder.extract_value(builder.cmpxchg(word, args[2], args[3], _ORDER, _ORDER), 1)

    return types.boolean(array, types.intp, types.int64, types.int64), codegen


@intrinsic
def pause(typing_context):
    """Tells the processor that this is a waiting loop, where there is such a hint."""

    def codegen(context, builder, signature, args):
        if platform.machine() == "x86_64":
            function_type = ir.FunctionType(ir.VoidType(), [])
            builder.call(cgutils.get_or_insert_function(builder.module, function_type, "llvm.x86.sse2.pause"), [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def cycles(typing_context):
    """A counter that goes with time, some 2 to 4 a nanosecond."""

    def codegen(context, builder, signature, args):
        function_type = ir.FunctionType(_I64, [])
        return builder.call(cgutils.get_or_insert_function(builder.module, function_type, "llvm.readcyclecounter"), [])

    return types.int64(), codegen

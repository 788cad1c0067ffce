"""A vector of 16 float32 for numba kernels: explicit lanes, explicit fused multiply-adds.

LLVM splits or joins the lanes to fit the host (one AVX-512 register, two AVX2 ones, four NEON ones), and every
operation is IEEE-exact per lane, so the bits do not depend on the host's width, on what LLVM chose to vectorise, or
on how rows were grouped. Loads and stores take a contiguous 1-D float32 array and an index, and are not checked.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

LANES = 16
_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_INTS = ir.VectorType(ir.IntType(32), LANES)
_BYTES = ir.VectorType(ir.IntType(8), LANES)


class Float32x16(types.Type):
    """The numba type of the vector."""

    def __init__(self) -> None:
        super().__init__(name="Float32x16")


vector = Float32x16()


@register_model(Float32x16)
class _Float32x16Model(models.PrimitiveModel):
    def __init__(self, data_model_manager: Any, frontend_type: Any) -> None:
        super().__init__(data_model_manager, frontend_type, _FLOATS)


def element_pointer(
    context: Any, builder: Any, array_type: Any, array: Any, index: Any, element: Any = _FLOATS
) -> Any:
    """The address of array[index] as that of an `element`."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), element.as_pointer())


def spread(builder: Any, scalar: Any, vector_type: Any) -> Any:
    """`scalar` in every lane."""
    first = builder.insert_element(ir.Constant(vector_type, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, first, ir.Constant(_INTS, [0] * LANES))


@intrinsic
def load(typing_context, array, index):
    """array[index : index + 16]"""

    def codegen(context, builder, signature, args):
        pointer = element_pointer(context, builder, signature.args[0], *args)
        return builder.load(pointer, align=4)

    return vector(array, types.intp), codegen


@intrinsic
def load_half(typing_context, array, index):
    """array[index : index + 16] as float32, for a uint16 array that holds the bits of float16."""

    def codegen(context, builder, signature, args):
        halfs = ir.VectorType(ir.HalfType(), LANES)
        pointer = element_pointer(context, builder, signature.args[0], *args, halfs)
        return builder.fpext(builder.load(pointer, align=2), _FLOATS)

    return vector(array, types.intp), codegen


@intrinsic
def store(typing_context, array, index, value):
    """array[index : index + 16] = value"""

    def codegen(context, builder, signature, args):
        pointer = element_pointer(context, builder, signature.args[0], *args[:2])
        builder.store(args[2], pointer, align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), codegen


@intrinsic
def half_to_float(typing_context, bits):
    """The float32 of a float16's bits."""

    def codegen(context, builder, signature, args):
        return builder.fpext(builder.bitcast(args[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.uint16), codegen


@intrinsic
def splat(typing_context, scalar):
    """Every lane the same scalar (taken as float32)."""
    return vector(types.float32), lambda context, builder, signature, args: spread(builder, args[0], _FLOATS)


@intrinsic
def fma(typing_context, a, b, c):
    """a * b + c, rounded once."""

    def codegen(context, builder, signature, args):
        function_type = ir.FunctionType(_FLOATS, [_FLOATS] * 3)
        function = cgutils.get_or_insert_function(builder.module, function_type, f"llvm.fma.v{LANES}f32")
        return builder.call(function, args)

    return vector(vector, vector, vector), codegen


def _binary(build: Callable[[Any, Any, Any], Any]) -> Any:
    """An intrinsic (vector, vector) -> vector whose instructions `build` emits."""

    def define(typing_context, a, b):
        return vector(vector, vector), lambda context, builder, signature, args: build(builder, *args)

    return intrinsic(define)


add = _binary(lambda builder, a, b: builder.fadd(a, b))
sub = _binary(lambda builder, a, b: builder.fsub(a, b))
mul = _binary(lambda builder, a, b: builder.fmul(a, b))
div = _binary(lambda builder, a, b: builder.fdiv(a, b))
# A NaN in b is kept: no comparison with it holds.
maximum = _binary(lambda builder, a, b: builder.select(builder.fcmp_ordered(">", a, b), a, b))
minimum = _binary(lambda builder, a, b: builder.select(builder.fcmp_ordered("<", a, b), a, b))


@intrinsic
def inside(typing_context, first, low, high, value, other):
    """Lanes numbered first, first + 1, ...: value where low <= number < high, else other."""

    def codegen(context, builder, signature, args):
        start, low, high = (builder.trunc(bound, ir.IntType(32)) for bound in args[:3])
        numbers = builder.add(spread(builder, start, _INTS), ir.Constant(_INTS, list(range(LANES))))
        above = builder.icmp_signed(">=", numbers, spread(builder, low, _INTS))
        below = builder.icmp_signed("<", numbers, spread(builder, high, _INTS))
        return builder.select(builder.and_(above, below), args[3], args[4])

    return vector(types.intp, types.intp, types.intp, vector, vector), codegen


@intrinsic
def ramp(typing_context, first):
    """first, first + 1, ... as floats."""

    def codegen(context, builder, signature, args):
        start = spread(builder, builder.trunc(args[0], ir.IntType(32)), _INTS)
        return builder.sitofp(builder.add(start, ir.Constant(_INTS, list(range(LANES)))), _FLOATS)

    return vector(types.intp), codegen


def _unary(name: str) -> Any:
    """An intrinsic vector -> vector that is an LLVM function of that name."""

    def define(typing_context, value):
        def codegen(context, builder, signature, args):
            function_type = ir.FunctionType(_FLOATS, [_FLOATS])
            function = cgutils.get_or_insert_function(builder.module, function_type, f"llvm.{name}.v{LANES}f32")
            return builder.call(function, args)

        return vector(vector), codegen

    return intrinsic(define)


nearest = _unary("nearbyint")  # rounded to the nearest whole number, ties to even
absolute = _unary("fabs")


@intrinsic
def store_bytes(typing_context, array, index, value):
    """array[index : index + 16] = value, whole numbers in [-128, 127], for an int8 array."""

    def codegen(context, builder, signature, args):
        array, index, value = args
        numbers = builder.trunc(builder.fptosi(value, _INTS), _BYTES)
        pointer = element_pointer(context, builder, signature.args[0], array, index, _BYTES)
        builder.store(numbers, pointer, align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), codegen


@intrinsic
def store_bfloat16(typing_context, array, index, value):
    """array[index : index + 16] = value rounded to bfloat16, ties to even: its bits in uint16, or in float32 its value.

    NaN stays.
    """

    def codegen(context, builder, signature, args):
        array, index, value = args
        bits = builder.bitcast(value, _INTS)
        one, sixteen, below_half, quiet = (ir.Constant(_INTS, [n] * LANES) for n in (1, 16, 0x7FFF, 0x40))
        upper = builder.lshr(bits, sixteen)
        carried = builder.add(bits, builder.add(builder.and_(upper, one), below_half))
        is_nan = builder.fcmp_unordered("uno", value, value)
        rounded = builder.select(is_nan, builder.or_(upper, quiet), builder.lshr(carried, sixteen))
        is_wide = signature.args[0].dtype == types.float32
        lanes = _INTS if is_wide else ir.VectorType(ir.IntType(16), LANES)
        stored = builder.shl(rounded, sixteen) if is_wide else builder.trunc(rounded, lanes)
        pointer = element_pointer(context, builder, signature.args[0], array, index, lanes)
        builder.store(stored, pointer, align=4 if is_wide else 2)
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), codegen


@intrinsic
def power_of_two(typing_context, exponent):
    """2**exponent for whole exponents in [-126, 127], by writing the exponent field."""

    def codegen(context, builder, signature, args):
        biased = builder.add(builder.fptosi(args[0], _INTS), ir.Constant(_INTS, [127] * LANES))
        return builder.bitcast(builder.shl(biased, ir.Constant(_INTS, [23] * LANES)), _FLOATS)

    return vector(vector), codegen


def _fold(build: Callable[[Any, Any, Any], Any]) -> Any:
    """An intrinsic vector -> float32 that joins the upper half of the lanes to the lower until one is left."""

    def define(typing_context, value):
        def codegen(context, builder, signature, args):
            lanes, width = args[0], LANES
            while width > 1:
                width //= 2
                mask = ir.VectorType(ir.IntType(32), width)
                halves = [ir.Constant(mask, list(range(first, first + width))) for first in (0, width)]
                lanes = build(builder, *(builder.shuffle_vector(lanes, lanes, half) for half in halves))
            return builder.extract_element(lanes, ir.Constant(ir.IntType(32), 0))

        return types.float32(vector), codegen

    return intrinsic(define)


total = _fold(lambda builder, a, b: builder.fadd(a, b))
largest = _fold(lambda builder, a, b: builder.select(builder.fcmp_ordered(">", a, b), a, b))


def _transposed(context: Any, builder: Any, types_of: Any, source: Any, starts: Any, first: Any, offset: Any) -> Any:
    """16 rows of 16 as columns. A butterfly: each round swaps off-diagonal blocks of the rows that are `step` apart."""
    offsets = context.make_array(types_of[1])(context, builder, starts).data
    rows = []
    for lane in range(LANES):
        place = builder.load(builder.gep(offsets, [builder.add(first, ir.Constant(ir.IntType(64), lane))]))
        pointer = element_pointer(context, builder, types_of[0], source, builder.add(place, offset))
        rows.append(builder.load(pointer, align=4))
    for step in (1, 2, 4, 8):
        low = ir.Constant(_INTS, [lane if not lane & step else lane - step + LANES for lane in range(LANES)])
        high = ir.Constant(_INTS, [lane + step if not lane & step else lane + LANES for lane in range(LANES)])
        for i in range(LANES):
            if not i & step:
                a, b = rows[i], rows[i + step]
                rows[i], rows[i + step] = builder.shuffle_vector(a, b, low), builder.shuffle_vector(a, b, high)
    return rows


@intrinsic
def transpose(typing_context, source, starts, first, offset, target, index, stride):
    """target[index + stride * d + j] = source[starts[first + j] + offset + d] for d, j in [0, 16)."""

    def codegen(context, builder, signature, args):
        source, starts, first, offset, target, index, stride = args
        rows = _transposed(context, builder, signature.args, source, starts, first, offset)
        for lane, row in enumerate(rows):
            place = builder.add(index, builder.mul(stride, ir.Constant(ir.IntType(64), lane)))
            builder.store(row, element_pointer(context, builder, signature.args[4], target, place), align=4)
        return context.get_dummy_value()

    return types.void(source, starts, types.intp, types.intp, target, types.intp, types.intp), codegen


@intrinsic
def transpose_lanes(typing_context, source, starts, first, offset, target, index, stride, lanes):
    """As `transpose`, for j in [0, lanes): nothing is written behind them."""

    def codegen(context, builder, signature, args):
        source, starts, first, offset, target, index, stride, lanes = args
        rows = _transposed(context, builder, signature.args, source, starts, first, offset)
        number = ir.IntType(32)
        here = spread(builder, builder.trunc(lanes, number), _INTS)
        mask = builder.icmp_signed("<", ir.Constant(_INTS, list(range(LANES))), here)
        for lane, row in enumerate(rows):
            place = builder.add(index, builder.mul(stride, ir.Constant(ir.IntType(64), lane)))
            pointer = element_pointer(context, builder, signature.args[4], target, place)
            function_type = ir.FunctionType(ir.VoidType(), [_FLOATS, pointer.type, number, mask.type])
            masked = cgutils.get_or_insert_function(builder.module, function_type, f"llvm.masked.store.v{LANES}f32.p0")
            builder.call(masked, [row, pointer, ir.Constant(number, 4), mask])
        return context.get_dummy_value()

    return types.void(source, starts, *[types.intp] * 2, target, *[types.intp] * 3), codegen

"""c += a @ b for small row-major matrices that lie in cache, in register tiles (`register_tile`)."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.cpu.jit import kernel
from kernels.cpu.register_tile import FLOATS, PANEL, Addresses, add_product, for_tiles, offset, run_depth
from kernels.cpu.simd import LANES


def _columns(num_vectors: int) -> Any:
    """An intrinsic: c[:, column : column + 16 · num_vectors] = or += a [num_rows, depth] @ b, by what `start` is."""

    def define(typing_context, a, lda, b, ldb, c, ldc, column, num_rows, depth, accumulate):
        def codegen(context, builder, signature, args):
            _, lda, _, ldb, _, ldc, column, num_rows, depth, accumulate = args
            address = Addresses(context, builder, signature, args)
            zero = ir.Constant(FLOATS, [0.0] * LANES)

            def tile(first_row: Any, height: int, vectors: range) -> None:
                rows = [offset(builder, first_row, row) for row in range(height)]
                starts_of_rows = [builder.mul(row, lda) for row in rows]
                targets = [
                    [address(4, offset(builder, column, (row, ldc), vector * LANES)) for vector in vectors]
                    for row in rows
                ]
                starts = [
                    [builder.select(accumulate, builder.load(target, align=4), zero) for target in row_targets]
                    for row_targets in targets
                ]

                def b_at(step: Any) -> list[Any]:
                    places = [offset(builder, column, (step, ldb), vector * LANES) for vector in vectors]
                    return [builder.load(address(2, place), align=4) for place in places]

                grown = run_depth(
                    builder, depth, starts, b_at,
                    lambda step: address.spread_rows(0, starts_of_rows, step, len(vectors)), add_product,
                )  # fmt: skip
                for row_targets, row_sums in zip(targets, grown, strict=True):
                    for target, value in zip(row_targets, row_sums, strict=True):
                        builder.store(value, target, align=4)

            for_tiles(builder, num_rows, tile, num_vectors)
            return context.get_dummy_value()

        index = types.intp
        signature = types.void(a, index, b, index, c, index, index, index, index, types.boolean)
        return signature, codegen

    return intrinsic(define)


_panel, _vector = _columns(PANEL // LANES), _columns(1)


@kernel
def multiply(a, lda, b, ldb, c, ldc, num_rows, num_columns, depth, accumulate):
    """c = a @ b, or c += a @ b; num_columns is a multiple of 16, and depth (at least 1) runs in ascending order."""
    whole = num_columns - num_columns % PANEL
    for column in range(0, whole, PANEL):
        _panel(a, lda, b, ldb, c, ldc, column, num_rows, depth, accumulate)
    if whole < num_columns:
        _vector(a, lda, b, ldb, c, ldc, whole, num_rows, depth, accumulate)

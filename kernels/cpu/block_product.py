"""The sums of a panel over a block of the depth; weights are float32, or bits of float16, widened on the way."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from kernels.cpu.register_tile import (
    FLOATS,
    HALFS,
    PANEL,
    Addresses,
    add_product,
    for_tiles,
    offset,
    prefetch,
    run_depth,
)
from kernels.cpu.simd import LANES

DEPTH = 256  # of a block: its weights stay in cache while tiles of rows take turns
_PAGE = 4096  # bytes ahead: the processor's own prefetching ends at each


@intrinsic
def add_block(typing_context, x, x_at, x_stride, num_rows, weights, w_at, steps, sums):
    """sums [num_rows, 32] += x[x_at + row * x_stride + step] · weights[w_at + step * 32 :], over `steps` >= 1."""

    is_float = weights.dtype == types.float32
    ahead = _PAGE // (4 if is_float else 2)

    def codegen(context, builder, signature, args):
        _, x_at, x_stride, num_rows, _, w_at, steps, _ = args
        address = Addresses(context, builder, signature, args)

        def tile(first_row: Any, height: int, vectors: range) -> None:
            def sums_at(row: int, vector: int) -> Any:
                return address(7, offset(builder, first_row.type(vector * LANES + row * PANEL), (first_row, PANEL)))

            def weights_at(step: Any) -> list[Any]:
                places = [offset(builder, w_at, (step, PANEL), vector * LANES) for vector in vectors]
                if height > 2:  # with fewer rows there is nothing to do but read
                    prefetch(builder, address(4, offset(builder, places[0], ahead), ir.IntType(8)))
                if is_float:
                    return [builder.load(address(4, place), align=4) for place in places]
                return [builder.fpext(builder.load(address(4, place, HALFS), align=2), FLOATS) for place in places]

            starts_of_rows = [offset(builder, x_at, (first_row, x_stride), (x_stride, row)) for row in range(height)]
            starts = [[builder.load(sums_at(row, vector), align=4) for vector in vectors] for row in range(height)]
            grown = run_depth(
                builder, steps, starts, weights_at,
                lambda step: address.spread_rows(0, starts_of_rows, step, len(vectors)), add_product,
            )  # fmt: skip
            for row, row_sums in enumerate(grown):
                for vector, value in zip(vectors, row_sums, strict=True):
                    builder.store(value, sums_at(row, vector), align=4)

        for_tiles(builder, num_rows, tile)
        return context.get_dummy_value()

    index = types.intp
    return types.void(x, index, index, index, weights, index, index, sums), codegen

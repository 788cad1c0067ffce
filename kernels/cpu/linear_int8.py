"""A linear layer with 8-bit weights and 8-bit activations, summed exactly in 32 bits within each group of the depth.

x          rows cut into groups of 128 numbers, each with a scale of its own (largest magnitude / 127): a row's bits
           depend on the row alone, and one large number spoils the resolution of its own group only
weights    uint8 [panels, K / 4, 32, 4], with a scale for each output and group. They are stored with an offset, because
           the processor multiplies unsigned by signed bytes; a group's sum starts at -offset · (sum of its x)
levels     ±127 with VNNI; ±63 without, where products are added in pairs in 16 bits: 2 · 127 · 127 just fits
source     8-bit quantisation by groups as in ggml's Q8_0, whose groups are 32 long
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray
from torch import Tensor

from kernels.cpu import threads
from kernels.cpu.arrays import flat, optional
from kernels.cpu.byte_dot import add_dot
from kernels.cpu.jit import kernel
from kernels.cpu.large_pages import zeros
from kernels.cpu.packed import Gate, PackedLinear, Rows
from kernels.cpu.panels import bias_of, kind_of, num_panels, round_up, slices, write_panel
from kernels.cpu.parallel import job, run_job
from kernels.cpu.quantise import GROUP, STEPS, quantise_panels, quantised
from kernels.cpu.recording import empty_tensor
from kernels.cpu.register_tile import (
    FLOATS,
    I32,
    INDEX,
    INTS,
    PANEL,
    Addresses,
    add_product,
    apart,
    for_tiles,
    offset,
    prefetch,
    run_depth,
    spread_words,
)
from kernels.cpu.row_tiles import block_rows
from kernels.cpu.simd import LANES

_BLOCK_GROUPS = 4  # whose weights stay in cache while tiles of rows take turns
_AHEAD = 4096  # a page: the processor's own prefetching ends at each


@intrinsic
def _add_groups(
    typing_context, x, starts, x_scales, block_row, num_rows, num_groups, first, stop, weights, w_scales, panel, sums
):
    """sums [num_rows, 32] += x · weights of a panel: groups [first, stop), (start + bytes · bytes) · w_scale · x_scale.

    x         tiles of groups · 32 words, four bytes each; starts int32 and x_scales float32, tiles of groups
    weights   uint8 [panels, groups · 32, 32, 4]; w_scales float32 [panels, groups, 32]
    """

    def codegen(context, builder, signature, args):
        _, _, _, block_row, num_rows, num_groups, first, stop, _, _, panel, _ = args
        address = Addresses(context, builder, signature, args)
        panel_group = builder.mul(panel, num_groups)

        def tile(first_row: Any, height: int, vectors: range) -> None:
            first_group = builder.mul(offset(builder, block_row, first_row), num_groups)
            with cgutils.for_range_slice(builder, first, stop, INDEX(1)) as (group, _):
                place = offset(builder, first_group, (group, height))
                words_at = builder.mul(place, INDEX(STEPS))
                group_at = builder.mul(offset(builder, panel_group, group), INDEX(GROUP * PANEL))

                def weights_at(step: Any) -> list[Any]:
                    places = [offset(builder, group_at, (step, 4 * PANEL), vector * 4 * LANES) for vector in vectors]
                    for place in places:
                        prefetch(builder, address(8, offset(builder, place, _AHEAD), ir.IntType(8)))
                    return [builder.load(address(8, place, INTS), align=4) for place in places]

                def x_of(step: Any) -> list[list[Any]]:
                    pointer = address(0, offset(builder, words_at, (step, height)), I32)
                    return spread_words(builder, pointer, height, vectors, INTS)

                begun = spread_words(builder, address(1, place, I32), height, vectors, INTS)
                products = run_depth(builder, INDEX(STEPS), begun, weights_at, x_of, add_dot)
                scales_at = builder.mul(offset(builder, panel_group, group), INDEX(PANEL))
                scales = [
                    builder.load(address(9, offset(builder, scales_at, vector * LANES)), align=4) for vector in vectors
                ]
                x_scales = spread_words(builder, address(2, place, FLOATS.element), height, vectors, FLOATS)
                targets = address(11, builder.mul(first_row, INDEX(PANEL)))
                if height > 4:  # else they stay in registers from group to group
                    targets = apart(builder, targets)
                for row, (row_products, row_scales) in enumerate(zip(products, x_scales, strict=True)):
                    for vector, scale, product, x_scale in zip(vectors, scales, row_products, row_scales, strict=True):
                        target = builder.gep(targets, [INDEX(row * PANEL // LANES + vector)])
                        value = builder.fmul(builder.sitofp(product, FLOATS), scale)
                        grown = add_product(builder, builder.load(target, align=4), value, x_scale)
                        builder.store(grown, target, align=4)

        for_tiles(builder, num_rows, tile)
        return context.get_dummy_value()

    index = types.intp
    return types.void(x, starts, x_scales, *[index] * 5, weights, w_scales, index, sums), codegen


@kernel
def _multiply_panels(x, starts, x_scales, num_rows, weights, w_scales, bias, out, shape, start, stop):
    """Items [start, stop), panels of one block of rows after the other, of out [num_rows, N] = x @ weights + bias."""
    width, num_groups, gate, num_panels, most_rows = shape
    sums = np.empty(min(num_rows, most_rows) * PANEL, np.float32)
    for item in range(start, stop):
        block, panel = divmod(item, num_panels)
        row = block * most_rows
        rows = min(most_rows, num_rows - row)
        sums[:] = 0
        for first in range(0, num_groups, _BLOCK_GROUPS):
            after = min(first + _BLOCK_GROUPS, num_groups)
            _add_groups(x, starts, x_scales, row, rows, num_groups, first, after, weights, w_scales, panel, sums)
        write_panel(sums, panel, rows, width, bias, gate, out[row * width :])


@kernel
def _launch_multiply_panels(board, tape, num_items, num_chunks, *arguments):
    run_job(board, tape, job(_multiply_panels, arguments), num_items, num_chunks)


class Int8Linear(PackedLinear):
    """Weights that are rounded here to LEVELS steps of their group's scale."""

    dtype = "int8"

    def __init__(self, weight: Rows, bias: Tensor | None, gate: Gate | None = None) -> None:
        super().__init__(weight, bias, gate)
        self._num_panels, self._gate = num_panels(weight.shape[0]), kind_of(gate)
        self._num_groups = -(-self.num_inputs // GROUP)
        self._weights, self._scales = _quantised_panels(weight, gate)
        self._bias = optional(bias_of(bias, gate))

    @staticmethod
    def weight_bytes(num_rows: int, num_inputs: int) -> int:
        return round_up(num_rows, PANEL) * -(-num_inputs // GROUP) * (GROUP + 4)

    def __call__(self, x: Tensor) -> Tensor:
        num_rows, num_groups = x.shape[0], self._num_groups
        most_rows = block_rows(num_groups * STEPS)
        out = empty_tensor((num_rows, self.num_outputs))
        arguments = (
            *quantised(x), num_rows, self._weights, self._scales, self._bias, flat(out),
            (self.num_outputs, num_groups, self._gate, self._num_panels, most_rows),
        )  # fmt: skip
        threads.run(_launch_multiply_panels, arguments, self._num_panels * -(-num_rows // most_rows))
        return out


def _quantised_panels(weight: Rows, gate: Gate | None) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """[N, K] -> bytes [panels, K / 4, 32, 4] and scales [panels, groups, 32], both flat, of whole groups."""
    depth = weight.shape[1]
    count, num_groups = num_panels(weight.shape[0]), -(-depth // GROUP)
    weights = zeros(count * PANEL * num_groups * GROUP, np.uint8)
    scales = zeros(count * num_groups * PANEL, np.float32)
    for numbers, panels in slices(weight, gate):
        quantise_panels(flat(panels), depth, num_groups, weights.view(np.float32), scales, numbers.start, numbers.stop)
    return weights, scales

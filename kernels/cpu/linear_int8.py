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
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from kernels.cpu import threads
from kernels.cpu.arrays import flat, optional
from kernels.cpu.byte_dot import EXACT, add_dot
from kernels.cpu.jit import kernel
from kernels.cpu.large_pages import zeros
from kernels.cpu.packed import Gate, PackedLinear, Rows
from kernels.cpu.panels import bias_of, kind_of, num_panels, round_up, slices, write_panel
from kernels.cpu.parallel import job, run_job
from kernels.cpu.recording import empty, empty_tensor
from kernels.cpu.register_tile import (
    FLOATS,
    INDEX,
    INTS,
    PANEL,
    Addresses,
    add_product,
    for_tiles,
    offset,
    prefetch,
    run_depth,
)
from kernels.cpu.simd import LANES, absolute, add, fma, largest, load, maximum, mul, nearest, splat, store_bytes, total

GROUP = 128  # numbers of the depth that share a scale
LEVELS = 127 if EXACT else 63  # of the weights
_OFFSET = LEVELS + 1
_STEPS = GROUP // 4
_AHEAD = 4096  # a page: the processor's own prefetching ends at each
_SMALLEST = 1e-36  # a group below it counts as zeros: the inverse of its scale would be infinite
_CHUNK_ELEMENTS = 1 << 15  # about 10 µs of work: below that, waking a thread costs more than it saves


@intrinsic
def _add_panel(typing_context, x, starts, x_scales, num_groups, num_rows, weights, w_at, w_scales, w_scales_at, sums):
    """sums [num_rows, 32] += x · weights of a panel: group by group, (start + bytes · bytes) · w_scale · x_scale.

    x         int32 [num_rows, groups · 32], four bytes each; starts int32 and x_scales float32 [num_rows, groups]
    weights   uint8, the panel's from w_at; w_scales float32 [groups, 32] from w_scales_at
    """

    def codegen(context, builder, signature, args):
        _, _, _, num_groups, num_rows, _, w_at, _, w_scales_at, _ = args
        address = Addresses(context, builder, signature, args)
        row_words = builder.mul(num_groups, INDEX(_STEPS))

        def tile(first_row: Any, height: int, vectors: range) -> None:
            rows = [offset(builder, first_row, row) for row in range(height)]
            with cgutils.for_range(builder, num_groups) as groups:
                first_word = [offset(builder, builder.mul(row, row_words), (groups.index, _STEPS)) for row in rows]
                group_of_row = [offset(builder, groups.index, (row, num_groups)) for row in rows]
                group_at = offset(builder, w_at, (groups.index, GROUP * PANEL))

                def weights_at(step: Any) -> list[Any]:
                    places = [offset(builder, group_at, (step, 4 * PANEL), vector * 4 * LANES) for vector in vectors]
                    for place in places:
                        prefetch(builder, address(5, offset(builder, place, _AHEAD), ir.IntType(8)))
                    return [builder.load(address(5, place, INTS), align=4) for place in places]

                products = run_depth(
                    builder, INDEX(_STEPS), [[address.spread(1, group, INTS)] * len(vectors) for group in group_of_row],
                    weights_at, lambda step, row: address.spread(0, offset(builder, first_word[row], step), INTS),
                    add_dot,
                )  # fmt: skip
                scales_at = offset(builder, w_scales_at, (groups.index, PANEL))
                scales = [
                    builder.load(address(7, offset(builder, scales_at, vector * LANES)), align=4) for vector in vectors
                ]
                for row, group, row_products in zip(rows, group_of_row, products, strict=True):
                    x_scale = address.spread(2, group)
                    for vector, scale, product in zip(vectors, scales, row_products, strict=True):
                        target = address(9, offset(builder, INDEX(vector * LANES), (row, PANEL)))
                        value = builder.fmul(builder.sitofp(product, FLOATS), scale)
                        grown = add_product(builder, builder.load(target, align=4), value, x_scale)
                        builder.store(grown, target, align=4)

        for_tiles(builder, num_rows, tile)
        return context.get_dummy_value()

    index = types.intp
    return types.void(x, starts, x_scales, index, index, weights, index, w_scales, index, sums), codegen


@kernel
def _quantise_rows(x, depth, num_groups, x_bytes, scales, starts, start, stop):
    """Rows [start, stop) of x [., depth] become signed bytes, with a scale and a start for each group.

    A NaN or an infinity makes its group's scale NaN, and so the row's outputs.
    """
    zero = splat(np.float32(0))
    short = np.zeros(GROUP, np.float32)                                # the last group, where it is cut off
    for group in range(start * num_groups, stop * num_groups):
        row, place = divmod(group, num_groups)
        width = min(GROUP, depth - place * GROUP)
        values = x[row * depth + place * GROUP :]
        if width < GROUP:
            short[:width] = values[:width]
            values = short
        tops, strange = zero, zero
        for i in range(0, GROUP, LANES):
            tops, strange = maximum(tops, absolute(load(values, i))), fma(load(values, i), zero, strange)
        top = largest(tops)
        inverse, scale = np.float32(0), np.float32(0)
        if top > np.float32(_SMALLEST):
            inverse, scale = np.float32(127) / top, top / np.float32(127)
        sums = zero
        for i in range(0, GROUP, LANES):
            steps = nearest(mul(load(values, i), splat(inverse)))
            store_bytes(x_bytes, group * GROUP + i, steps)
            sums = add(sums, steps)
        scales[group] = scale + total(strange)
        starts[group] = -_OFFSET * np.int32(total(sums))


@kernel
def _launch_quantise_rows(board, tape, num_items, num_chunks, *arguments):
    run_job(board, tape, job(_quantise_rows, arguments), num_items, num_chunks)


@kernel
def _multiply_panels(x, starts, x_scales, num_rows, weights, w_scales, bias, out, shape, start, stop):
    """Panels [start, stop) of out [num_rows, N] = x [num_rows, groups · 128] @ weights + bias."""
    width, num_groups, gate = shape
    sums = np.empty(num_rows * PANEL, np.float32)
    for panel in range(start, stop):
        sums[:] = 0
        first = panel * num_groups * PANEL
        _add_panel(x, starts, x_scales, num_groups, num_rows, weights, first * GROUP, w_scales, first, sums)
        write_panel(sums, panel, num_rows, width, bias, gate, out)


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
        x_bytes = empty((num_rows, num_groups * GROUP), np.int8).reshape(-1)
        scales, starts = (empty((num_rows, num_groups), dtype).reshape(-1) for dtype in (np.float32, np.int32))
        arguments: tuple[Any, ...] = (flat(x.contiguous()), self.num_inputs, num_groups, x_bytes, scales, starts)
        min_rows = _CHUNK_ELEMENTS // (num_groups * GROUP)
        threads.run(_launch_quantise_rows, arguments, num_rows, min_items=min_rows)
        out = empty_tensor((num_rows, self.num_outputs))
        arguments = (
            x_bytes.view(np.int32), starts, scales, num_rows, self._weights, self._scales, self._bias, flat(out),
            (self.num_outputs, num_groups, self._gate),
        )  # fmt: skip
        threads.run(_launch_multiply_panels, arguments, self._num_panels)
        return out


def _quantised_panels(weight: Rows, gate: Gate | None) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """[N, K] -> bytes [panels, K / 4, 32, 4] and scales [panels, groups, 32], both flat, of whole groups."""
    depth = weight.shape[1]
    count, num_groups, missing = num_panels(weight.shape[0]), -(-depth // GROUP), -depth % GROUP
    weights = zeros(count * PANEL * num_groups * GROUP, np.uint8)
    scales = zeros(count * num_groups * PANEL, np.float32)
    fours = torch.from_numpy(weights.view(np.int32)).view(count, -1, PANEL)
    scale_of = torch.from_numpy(scales).view(count, num_groups, PANEL)
    for numbers, panels in slices(weight, gate):
        groups = (pad(panels, (0, missing)) if missing else panels).view(len(panels), PANEL, num_groups, GROUP)
        scale = groups.abs().amax(dim=-1) / LEVELS
        steps = (groups / scale.clamp_min(_SMALLEST).unsqueeze(-1)).round_().add_(_OFFSET).to(torch.uint8)
        fours[numbers] = steps.view(len(panels), PANEL, -1).view(torch.int32).permute(0, 2, 1)
        scale_of[numbers] = scale.permute(0, 2, 1)
    return weights, scales

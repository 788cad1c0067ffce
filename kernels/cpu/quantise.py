"""Numbers as signed bytes with a scale for each group of 128: rows of activations, and the panels of a weight.

group     its scale is its largest magnitude / LEVELS (127 for rows), its bytes are the numbers / scale, rounded
start     of a group of a row: -OFFSET · (sum of its bytes), for weights are stored with OFFSET added
"""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kernels.cpu import threads
from kernels.cpu.arrays import flat
from kernels.cpu.byte_dot import EXACT
from kernels.cpu.jit import kernel
from kernels.cpu.parallel import job, run_job
from kernels.cpu.recording import empty
from kernels.cpu.register_tile import PANEL
from kernels.cpu.row_tiles import MOST, lay_out, num_tiles, tile_at
from kernels.cpu.simd import (
    LANES,
    absolute,
    add,
    div,
    fma,
    largest,
    load,
    maximum,
    mul,
    nearest,
    splat,
    store_bytes,
    total,
    transpose,
)

GROUP = 128  # numbers of the depth that share a scale
STEPS = GROUP // 4  # words of four bytes
LEVELS = 127 if EXACT else 63  # of the weights
OFFSET = LEVELS + 1
_SMALLEST = 1e-36  # a group below it counts as zeros: the inverse of its scale would be infinite
_CHUNK_ELEMENTS = 1 << 15  # about 10 µs of work: below that, waking a thread costs more than it saves


@kernel
def _magnitude(values):
    """The largest of 128 numbers, without its sign; NaN if one of them is NaN or infinite."""
    zero = splat(np.float32(0))
    tops, strange = zero, zero
    for i in range(0, GROUP, LANES):
        tops, strange = maximum(tops, absolute(load(values, i))), fma(load(values, i), zero, strange)
    return largest(tops) + total(strange)


@kernel
def _quantise_row(x, depth, num_groups, short, x_bytes, place, scales, starts, target, height):
    """A row x [depth] becomes signed bytes from `place` on, with a scale and a start for each group, `height` apart.

    `short` [128] holds the last group where the row ends in it, and zeros behind. A NaN or an infinity makes its
    group's scale NaN, and so the row's outputs.
    """
    for group in range(num_groups):
        width = min(GROUP, depth - group * GROUP)
        values = x[group * GROUP :]
        if width < GROUP:
            short[:width] = values[:width]
            values = short
        top = _magnitude(values)
        inverse, scale = np.float32(0), top * np.float32(0)
        if top > np.float32(_SMALLEST):
            inverse, scale = np.float32(127) / top, top / np.float32(127)
        sums = splat(np.float32(0))
        for i in range(0, GROUP, LANES):
            steps = nearest(mul(load(values, i), splat(inverse)))
            store_bytes(x_bytes, place + group * GROUP + i, steps)
            sums = add(sums, steps)
        scales[target + group * height] = scale
        starts[target + group * height] = -OFFSET * np.int32(total(sums))


@kernel
def _quantise_tiles(x, depth, num_groups, num_rows, tiled, scales, starts, start, stop):
    """Tiles [start, stop) of x [num_rows, depth]."""
    words = num_groups * STEPS
    x_bytes, short = np.empty(min(num_rows, MOST) * 4 * words, np.int8), np.zeros(GROUP, np.float32)
    for tile in range(start, stop):
        first, height = tile_at(tile, num_rows)
        for row in range(height):
            source, target = x[(first + row) * depth :], first * num_groups + row
            _quantise_row(source, depth, num_groups, short, x_bytes, row * 4 * words, scales, starts, target, height)
        lay_out(x_bytes.view(np.float32), 0, words, height, words, tiled, first * words)


@kernel
def _launch_quantise_tiles(board, tape, num_items, num_chunks, *arguments):
    run_job(board, tape, job(_quantise_tiles, arguments), num_items, num_chunks)


def quantised(x: Tensor) -> tuple[NDArray[np.float32], NDArray[np.int32], NDArray[np.float32]]:
    """Rows [num_rows, K] as words of four bytes, their groups' starts and their scales, all in tiles (`row_tiles`)."""
    num_rows, depth = x.shape
    num_groups = -(-depth // GROUP)
    words = empty((num_rows, num_groups * STEPS), np.float32).reshape(-1)
    scales, starts = (empty((num_rows, num_groups), dtype).reshape(-1) for dtype in (np.float32, np.int32))
    threads.run(
        _launch_quantise_tiles, (flat(x.contiguous()), depth, num_groups, num_rows, words, scales, starts),
        num_tiles(num_rows), min_items=_CHUNK_ELEMENTS // (MOST * num_groups * GROUP),
    )  # fmt: skip
    return words, starts, scales


@kernel
def quantise_panels(panels, depth, num_groups, words, scales, start, stop):
    """Panels [start, stop) of the weights and their scales, from float32 [stop - start, 32, depth]."""
    steps, starts = np.empty(PANEL * GROUP, np.int8), np.arange(PANEL) * STEPS
    short = np.zeros(GROUP, np.float32)                                # the last group, where it is cut off
    for group in range(start * num_groups, stop * num_groups):
        panel, place = divmod(group, num_groups)
        width = min(GROUP, depth - place * GROUP)
        for output in range(PANEL):
            values = panels[((panel - start) * PANEL + output) * depth + place * GROUP :]
            if width < GROUP:
                short[:width] = values[:width]
                values = short
            scale = _magnitude(values) / np.float32(LEVELS)
            scales[group * PANEL + output] = scale
            divisor, middle = splat(max(scale, np.float32(_SMALLEST))), splat(np.float32(OFFSET))
            for i in range(0, GROUP, LANES):
                store_bytes(steps, output * GROUP + i, add(nearest(div(load(values, i), divisor)), middle))
        for first in range(0, PANEL, LANES):
            for word in range(0, STEPS, LANES):
                target = (group * STEPS + word) * PANEL + first
                transpose(steps.view(np.float32), starts, first, word, words, target, PANEL)

"""Rows of activations as register tiles read them: the numbers that a tile's rows have at one depth lie together.

    rows      [num_rows, num_words]                     one row behind the other
    tiled     [tile][num_words][rows of the tile]       tile t from word 12 · t · num_words on

A tile has 12 rows; what is left at the end takes the next smaller heights (`register_tile.HEIGHTS`). So a step of the
depth reads one line or two, and finds every row at a fixed distance from one address. A word is 32 bits: four bytes of
int8's activations. Rows of floats are read as they lie: four times as large, they gain nothing from being laid out.
"""

import numpy as np

from kernels.cpu.jit import kernel
from kernels.cpu.register_tile import HEIGHTS
from kernels.cpu.simd import LANES, transpose_lanes

_BLOCK_WORDS = 3 << 16  # of activations, that stay in a core's cache of the second level while weights pass
MOST = HEIGHTS[0]  # rows of a tile


def block_rows(num_words: int) -> int:
    """Rows of so many words that meet one panel after the other before the next rows do: whole tiles, at most eight."""
    return MOST * max(1, min(8, _BLOCK_WORDS // (num_words * MOST)))


def num_tiles(num_rows: int) -> int:
    """Of so many rows."""
    tiles, rest = divmod(num_rows, MOST)
    for height in HEIGHTS[1:]:
        tiles, rest = tiles + rest // height, rest % height
    return tiles


@kernel
def tile_at(tile, num_rows):
    """(first row, number of rows) of a tile."""
    whole = num_rows // MOST
    if tile < whole:
        return tile * MOST, MOST
    first, number = whole * MOST, whole
    for height in HEIGHTS[1:]:
        while first + height <= num_rows:
            if number == tile:
                return first, height
            first, number = first + height, number + 1
    return first, 0


@kernel
def lay_out(rows, place, stride, height, num_words, tiled, target):
    """tiled[target + word * height + row] = rows[place + row * stride + word], for a tile.

    Both are seen as float32, whatever is in them, and num_words is a multiple of 16.
    """
    if height == 1:
        tiled[target : target + num_words] = rows[place : place + num_words]
        return
    starts = np.empty(LANES, np.int64)
    for lane in range(LANES):
        starts[lane] = place + min(lane, height - 1) * stride
    for word in range(0, num_words, LANES):
        transpose_lanes(rows, starts, 0, word, tiled, target + word * height, height, height)

"""Rows laid out in tiles: every row in one tile, every word where the product looks for it, nothing written beside."""

import numpy as np
import pytest

from kernels.cpu.register_tile import HEIGHTS
from kernels.cpu.row_tiles import MOST, block_rows, lay_out, num_tiles, tile_at


@pytest.mark.parametrize("num_rows", [*range(1, 40), 511, 512])
def test_tiles_follow_each_other_over_all_rows(num_rows):
    tiles = [tile_at(tile, num_rows) for tile in range(num_tiles(num_rows))]
    ends = [first + height for first, height in tiles]
    assert [first for first, _ in tiles] == [0, *ends[:-1]] and ends[-1] == num_rows
    assert all(height in HEIGHTS for _, height in tiles)


@pytest.mark.parametrize("num_rows", [*range(1, 30), 200])
def test_heights_are_those_of_the_product(num_rows):
    """`register_tile.for_tiles` takes each height as often as it fits before the next smaller one."""
    expected, rest = [], num_rows
    for height in HEIGHTS:
        while rest >= height:
            expected.append(height)
            rest -= height
    assert [tile_at(tile, num_rows)[1] for tile in range(num_tiles(num_rows))] == expected


@pytest.mark.parametrize("height", HEIGHTS)
def test_words_of_a_tile(height):
    num_words, stride, target = 32, 50, 7
    rows = np.arange(3 + height * stride, dtype=np.float32)
    tiled = np.full(target + height * num_words + 20, -1, np.float32)
    lay_out(rows, 3, stride, height, num_words, tiled, target)
    expected = np.full_like(tiled, -1)
    for row in range(height):
        for word in range(num_words):
            expected[target + word * height + row] = rows[3 + row * stride + word]
    assert np.array_equal(tiled, expected)


def test_any_bits_are_kept():
    """Four bytes may be the bits of a signalling NaN."""
    bits = np.random.default_rng(0).integers(0, 2**32, (MOST, 16), dtype=np.uint32)
    bits[0, 0], bits[1, 1] = 0x7F800001, 0xFF800001
    tiled = np.zeros(MOST * 16, np.float32)
    lay_out(bits.reshape(-1).view(np.float32), 0, 16, MOST, 16, tiled, 0)
    assert np.array_equal(tiled.view(np.uint32).reshape(16, MOST).T, bits)


@pytest.mark.parametrize("num_words", [16, 224, 1216, 1 << 20])
def test_a_block_is_whole_tiles(num_words):
    assert block_rows(num_words) % MOST == 0 and MOST <= block_rows(num_words) <= 8 * MOST

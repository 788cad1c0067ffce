"""Bytes, scales and starts of groups against numpy, where the product looks for them."""

import numpy as np
import pytest
import torch

from kernels.cpu.arrays import flat
from kernels.cpu.quantise import GROUP, LEVELS, OFFSET, STEPS, quantise_panels, quantised
from kernels.cpu.register_tile import PANEL
from kernels.cpu.row_tiles import num_tiles, tile_at
from kernels.testing import nan_allocations

DEPTHS = pytest.mark.parametrize("depth", [1, 100, GROUP, 3 * GROUP + 5])


def rand(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def in_groups(rows):
    """[N, K] -> [N, groups, 128], zeros where the last is cut off."""
    missing = -rows.shape[1] % GROUP
    return np.pad(rows, ((0, 0), (0, missing))).reshape(len(rows), -1, GROUP)


def rows_of(tiled, num_rows, num_words):
    """[num_rows, num_words] out of tiles."""
    found = np.empty((num_rows, num_words), tiled.dtype)
    for tile in range(num_tiles(num_rows)):
        first, height = tile_at(tile, num_rows)
        found[first : first + height] = tiled[first * num_words :][: height * num_words].reshape(num_words, height).T
    return found


@DEPTHS
@pytest.mark.parametrize("num_rows", [1, 7, 30])
def test_rows(depth, num_rows):
    x = rand(num_rows, depth)
    x[0] = 0
    with nan_allocations():
        words, starts, scales = quantised(x)
    groups = in_groups(x.numpy())
    num_groups = groups.shape[1]
    tops = np.abs(groups).max(axis=2)
    with np.errstate(divide="ignore"):
        inverse = np.where(tops > 0, np.float32(127) / tops, np.float32(0)).astype(np.float32)
    expected = np.rint(groups * inverse[:, :, None]).astype(np.int8)
    found = rows_of(words.view(np.int32), num_rows, num_groups * STEPS)
    assert np.array_equal(np.ascontiguousarray(found).view(np.int8).reshape(expected.shape), expected)
    assert np.array_equal(rows_of(scales, num_rows, num_groups), tops / np.float32(127))
    assert np.array_equal(rows_of(starts, num_rows, num_groups), -OFFSET * expected.sum(axis=2, dtype=np.int32))


@DEPTHS
def test_panels(depth):
    weight, first = rand(2 * PANEL, depth), 1
    weight[3] = 0
    groups = in_groups(weight.numpy())
    num_groups = groups.shape[1]
    words = np.zeros((2 + first) * num_groups * STEPS * PANEL, np.float32)
    scales = np.zeros((2 + first) * num_groups * PANEL, np.float32)
    quantise_panels(flat(weight), depth, num_groups, words, scales, first, first + 2)
    expected_scales = np.abs(groups).max(axis=2) / np.float32(LEVELS)
    steps = np.rint(groups / np.maximum(expected_scales, np.float32(1e-36))[:, :, None]) + OFFSET
    found = words.view(np.uint8).reshape(2 + first, num_groups, STEPS, PANEL, 4).transpose(0, 3, 1, 2, 4)
    assert np.array_equal(found[first:].reshape(groups.shape), steps)
    found_scales = scales.reshape(-1, num_groups, PANEL)[first:].transpose(0, 2, 1).reshape(-1, num_groups)
    assert np.array_equal(found_scales, expected_scales)
    assert not words[: first * num_groups * STEPS * PANEL].any() and not scales[: first * num_groups * PANEL].any()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_group_with_no_number_has_no_scale(value):
    x = rand(2, 2 * GROUP)
    x[1, 5] = value
    _, _, scales = quantised(x)
    assert np.array_equal(np.isnan(rows_of(scales, 2, 2)), [[False, False], [True, False]])

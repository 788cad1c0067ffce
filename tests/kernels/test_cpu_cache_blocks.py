"""CPU block copies: to the byte, and nothing else written."""

import math

import pytest
import torch

from kernels import reference
from kernels.cpu.cache_blocks import copy_blocks, swap_blocks

PAIRS = torch.tensor([[3, 0], [1, 2], [3, 5]])  # block 3 twice


def caches():
    both = torch.full((2, 6, 5, 1, 20), math.nan)
    both[:, PAIRS[:, 0]] = torch.randn(2, len(PAIRS), 5, 1, 20, generator=torch.Generator().manual_seed(0))
    return both


@pytest.mark.parametrize("num_pairs", [0, 1, 3])
def test_blocks_are_copied_and_nothing_else_is(num_pairs):
    actual, expected = caches(), caches()
    copy_blocks(*actual, PAIRS[:num_pairs])
    reference.copy_blocks(*expected, PAIRS[:num_pairs])
    assert torch.equal(actual.view(torch.int32), expected.view(torch.int32))


def test_swapped_blocks_arrive_in_the_other_cache():
    source, destination = torch.randn(9, 5, 1, 20), torch.zeros(4, 5, 1, 20)
    swap_blocks(source, destination, torch.tensor([[7, 0], [8, 1], [2, 3]]))
    assert torch.equal(destination[[0, 1, 3]], source[[7, 8, 2]]) and not destination[2].any()

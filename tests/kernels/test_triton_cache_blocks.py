"""Triton's block copies, interpreted; and the host's side of swapping, which is torch copies on any device."""

import math

import pytest
import torch

from kernels import reference
from kernels.triton import configs
from kernels.triton.cache_blocks import copy_blocks, runs, swap_blocks

PAIRS = torch.tensor([[3, 0], [1, 2], [3, 5]])  # block 3 twice


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """Several chunks a block, the last one partial."""
    monkeypatch.setattr(configs, "COPY_BYTES", 64)


def caches(dtype, page=5, heads=1, head_dim=20):
    """Two caches of 6 blocks, NaN but in the blocks that are copied."""
    rng = torch.Generator().manual_seed(0)
    both = torch.full((2, 6, page, heads, head_dim), math.nan)
    both[:, PAIRS[:, 0]] = torch.randn(2, len(PAIRS), page, heads, head_dim, generator=rng)
    return both.to(dtype)


def same_bytes(a, b):
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_blocks_are_copied_to_the_byte_and_nothing_else_is(dtype):
    actual, expected = caches(dtype), caches(dtype)
    copy_blocks(*actual, PAIRS)
    reference.copy_blocks(*expected, PAIRS)
    assert same_bytes(actual, expected)
    assert same_bytes(actual[:, 5], actual[:, 3]) and actual[:, 4].float().isnan().all()


def test_no_pairs_at_all():
    both = caches(torch.float32)
    copy_blocks(*both, PAIRS[:0])
    assert same_bytes(both, caches(torch.float32))


def test_a_block_beyond_32_bits(monkeypatch):
    """Its first byte lies 2**31 bytes into the cache; the blocks between are never touched."""
    from triton.runtime.interpreter import GridExecutor

    monkeypatch.setattr(GridExecutor, "_restore_args_dev", lambda *args: None)  # it would copy the cache onto itself
    far = 2**31 // (16 * 32 * 2)
    cache = torch.empty(far + 1, 16, 1, 32, dtype=torch.float16)
    monkeypatch.setattr(configs, "COPY_BYTES", 1024)
    cache[1] = torch.randn(16, 1, 32).half()
    copy_blocks(cache, cache, torch.tensor([[1, far]]))
    assert torch.equal(cache[far], cache[1])


def test_swapped_blocks_arrive_to_the_byte():
    source, actual, expected = torch.randn(9, 5, 1, 20), torch.zeros(4, 5, 1, 20), torch.zeros(4, 5, 1, 20)
    pairs = torch.tensor([[7, 0], [8, 1], [2, 3]])
    swap_blocks(source, actual, pairs)
    reference.swap_blocks(source, expected, pairs)
    assert torch.equal(actual, expected) and not actual[2].any()


def test_a_run_is_one_copy():
    assert list(runs([[3, 7], [4, 8], [5, 2], [6, 3], [6, 4], [7, 6]])) == [(3, 7, 2), (5, 2, 2), (6, 4, 1), (7, 6, 1)]
    assert list(runs([])) == []

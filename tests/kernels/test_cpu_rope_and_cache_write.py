"""CPU rotary embedding and cache write: parity with the reference, and nothing written where nothing belongs."""

import math

import pytest
import torch

from kernels import reference
from kernels.cpu.rope_and_cache_write import rope_and_cache_write
from kernels.testing import assert_close

NUM_TOKENS, NUM_QUERY_HEADS, NUM_KV_HEADS = 9, 6, 2


def inputs(head_dim=32, rotary_dim=32, page=4, seed=0):
    rng = torch.Generator().manual_seed(seed)
    packed = torch.randn(NUM_TOKENS, NUM_QUERY_HEADS + 2 * NUM_KV_HEADS, head_dim, generator=rng)
    query, key, value = packed.split([NUM_QUERY_HEADS, NUM_KV_HEADS, NUM_KV_HEADS], dim=1)
    cos_sin = torch.randn(50, rotary_dim, generator=rng) if rotary_dim else None
    caches = torch.full((2, 8, page, NUM_KV_HEADS, head_dim), math.nan)
    slots = torch.randperm(8 * page, generator=rng)[:NUM_TOKENS]
    slots[2] = -1
    return [query, key, value, cos_sin, torch.randint(50, (NUM_TOKENS,), generator=rng), *caches, slots]


def check(tensors, **options):
    expected = [t if t is None else t.clone() for t in tensors]
    rope_and_cache_write(*tensors, **options)
    reference.rope_and_cache_write(*expected, **options)
    written = tensors[7][tensors[7] >= 0]
    for index, name in ((0, "query"), (1, "key"), (2, "value")):
        assert_close(tensors[index], expected[index], 64, name)
    for index, name in ((5, "key cache"), (6, "value cache")):
        actual, truth = tensors[index].flatten(0, 1), expected[index].flatten(0, 1)
        assert_close(actual[written], truth[written], 64, name)
        assert torch.equal(actual.isnan(), truth.isnan()), f"{name} is written elsewhere"


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [0, 2, 12, 32])
def test_rotations_full_partial_and_none(rotary_dim, interleaved):
    check(inputs(rotary_dim=rotary_dim), interleaved=interleaved)


@pytest.mark.parametrize(("head_dim", "page"), [(64, 16), (80, 1), (20, 3), (7, 5)])
def test_head_dims_and_page_sizes(head_dim, page):
    check(inputs(head_dim=head_dim, rotary_dim=head_dim // 2 * 2, page=page + 1))


@pytest.mark.parametrize("one_plus", [False, True])
def test_qk_norm_comes_before_the_rotation(one_plus):
    weights = torch.randn(2, 32, generator=torch.Generator().manual_seed(1))
    check(inputs(), q_norm_weight=weights[0], k_norm_weight=weights[1], eps=1e-5, norm_one_plus=one_plus)


def test_norm_of_one_side_only():
    check(inputs(), k_norm_weight=torch.linspace(0.5, 2, 32).half())


def test_scales_divide_each_once():
    check(inputs(), k_scale=0.25, v_scale=3.0)


def test_rope_rows_may_be_int32():
    tensors = inputs()
    tensors[4] = tensors[4].int()
    check(tensors)


def test_only_padding_rows_write_nothing():
    tensors = inputs()
    tensors[7][:] = -1
    check(tensors)
    assert bool(tensors[5].isnan().all()) and bool(tensors[6].isnan().all())


@pytest.mark.parametrize("interleaved", [False, True])
def test_bits_do_not_depend_on_the_rows_beside_or_the_layout(interleaved):
    weight = torch.linspace(0.5, 2, 32)
    options = {"interleaved": interleaved, "q_norm_weight": weight, "k_norm_weight": weight}
    together = inputs()
    rope_and_cache_write(*together, **options)
    alone = inputs()
    for token in range(NUM_TOKENS):
        row = slice(token, token + 1)
        query, key, value = (t[row].contiguous() for t in alone[:3])
        rope_and_cache_write(query, key, value, alone[3], alone[4][row], *alone[5:7], alone[7][row], **options)
        assert torch.equal(query, together[0][row]) and torch.equal(key, together[1][row])
    for cache in (5, 6):
        assert torch.equal(alone[cache].nan_to_num(99), together[cache].nan_to_num(99))

"""Triton varlen attention, interpreted: parity with the reference, and the kinds of fault that packing invites."""

import math
from dataclasses import replace

import pytest
import torch

from kernels.testing import attention_case, check_varlen, start_locations, varlen_case
from kernels.triton.paged_attention import paged_attention
from kernels.triton.varlen_attention import varlen_attention

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in")  # numpy's, where softcap saturates

TILE = 16  # keys and rows of an interpreted tile


def check(lengths, **options):
    return check_varlen(varlen_case(lengths, **options), varlen_attention)


def random_case(seed):
    rng = torch.Generator().manual_seed(seed)

    def pick(*choices):
        return choices[int(torch.randint(len(choices), (1,), generator=rng))]

    num_kv_heads, group = pick(1, 2), pick(1, 2, 5, 7)
    heads = num_kv_heads * group
    return varlen_case(
        [pick(1, 2, 15, 16, 17, 33), *(pick(0, 1, 5, 16, 18) for _ in range(pick(0, 1, 2)))],
        num_query_heads=heads, num_kv_heads=num_kv_heads, head_dim=pick(32, 64, 80), seed=seed,
        dtype=pick(torch.float32, torch.float16), causal=pick(True, False), window=pick(0, 0, 1, 7, 16),
        softcap=pick(0.0, 0.0, 5.0), sinks=pick(None, None, torch.randn(heads, generator=rng)),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_random_cases(seed):
    check_varlen(random_case(seed), varlen_attention)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(1000, 1100))
def test_many_random_cases(seed):
    check_varlen(random_case(seed), varlen_attention)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("length", [1, TILE - 1, TILE, TILE + 1, 2 * TILE + 1])
def test_lengths_around_the_tile_edges(length, causal):
    check([length, 3], causal=causal)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [1, TILE - 1, TILE, TILE + 1, 100])
def test_window_keeps_exactly_the_keys_less_than_window_back(window, causal):
    check([36], window=window, causal=causal, num_query_heads=2)


@pytest.mark.parametrize("group", [5, 7, 20])
def test_groups_of_query_heads_that_do_not_fill_the_rows(group):
    check([2, 5], num_query_heads=group, num_kv_heads=1)


@pytest.mark.parametrize("head_dim", [72, 80, 96, 192])
def test_head_dims_that_are_no_power_of_two_stay_inside_their_head(head_dim):
    check([17], head_dim=head_dim)


def test_softcap_comes_before_the_mask_and_the_sink():
    check([20], softcap=0.5, sinks=torch.tensor([3.0, -2.0, 0.0, 80.0]))


def test_zero_length_requests_inside_a_batch():
    check([0, 5, 0, 0, 1, 0])


def test_no_requests_at_all():
    assert check([]).shape == (0, 4, 32)


@pytest.mark.filterwarnings("ignore:All-NaN slice")  # numpy's, of the poisoned rows
@pytest.mark.parametrize("causal", [True, False])
def test_nan_of_one_request_stays_in_its_rows(causal):
    """The tail of a tile holds the next request's keys and values: neither may leak, even times a weight of 0."""
    case = varlen_case([5, 20, 3], causal=causal)
    clean = case.run(varlen_attention)
    for tensor in (case.query, case.key, case.value):
        tensor[case.rows(1)] = math.nan
    dirty = case.run(varlen_attention)
    assert bool(dirty[case.rows(1)].isnan().all())
    for r in (0, 2):
        assert torch.equal(dirty[case.rows(r)], clean[case.rows(r)])


@pytest.mark.parametrize("layout", ["value of its own", "heads first"])
def test_keys_and_values_of_other_strides(layout):
    case = varlen_case([5, 20])
    if layout == "value of its own":
        case = replace(case, value=case.value.contiguous())
    else:
        case = replace(case, key=heads_first(case.key), value=heads_first(case.value), query=heads_first(case.query))
    check_varlen(case, varlen_attention)


def heads_first(x):
    return x.transpose(0, 1).contiguous().transpose(0, 1)


def test_a_row_is_the_same_to_the_bit_in_every_batch():
    case = varlen_case([9, 33, 1, 17], num_query_heads=2, num_kv_heads=1)
    together = case.run(varlen_attention)
    for order in ([1], [3, 0], [2, 1, 3]):
        batch = case.select(order)
        out = batch.run(varlen_attention)
        for place, request in enumerate(order):
            assert torch.equal(out[batch.rows(place)], together[case.rows(request)]), (order, request)


def test_the_bits_are_those_of_a_prompt_in_the_paged_cache():
    paged = attention_case([21], [21], page=16)
    blocks = paged.block_table[0, :2].long()
    key, value = (cache[blocks].flatten(0, 1)[:21] for cache in (paged.key_cache, paged.value_cache))
    packed = varlen_attention(paged.query, key, value, start_locations([21]), **paged.options)
    assert torch.equal(packed, paged.run(paged_attention))


def test_offsets_beyond_32_bits(monkeypatch):
    """The last request begins 2**31 elements into the keys; the tokens before it are never touched."""
    from triton.runtime.interpreter import GridExecutor

    monkeypatch.setattr(GridExecutor, "_restore_args_dev", lambda *args: None)  # it would copy the keys onto themselves
    near = varlen_case([5], num_query_heads=1, num_kv_heads=1, dtype=torch.float16)
    far, stride = 64, 2**31 // 64
    keys = torch.empty((far + 4) * stride + 32, dtype=torch.float16).as_strided((far + 5, 1, 32), (stride, 32, 1))
    query = torch.zeros(far + 5, 1, 32, dtype=torch.float16)
    keys[:far], keys[far:], query[far:] = 0, near.key[:5], near.query[:5]
    out = varlen_attention(query, keys, keys, start_locations([far, 5]), **near.options)
    assert torch.equal(out[far:], replace(near, value=near.key).run(varlen_attention))

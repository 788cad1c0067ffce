"""CPU varlen attention: parity with the reference, and the same bits for a row whatever shares its batch."""

import math
from dataclasses import replace

import pytest
import torch

from kernels.cpu.paged_attention import paged_attention
from kernels.cpu.varlen_attention import varlen_attention
from kernels.testing import attention_case, check_varlen, start_locations, varlen_case


def check(lengths, **options):
    return check_varlen(varlen_case(lengths, **options), varlen_attention)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("lengths", [[1], [63, 64, 65], [130], [0, 5, 0, 1, 0], [3, 200]])
def test_lengths_around_the_tile_edges(lengths, causal):
    check(lengths, causal=causal)


@pytest.mark.parametrize("options", [
    {"window": 7}, {"window": 64, "causal": False}, {"softcap": 2.0}, {"sinks": torch.tensor([3.0, -2.0, 0.0, 80.0])},
    {"num_query_heads": 14, "head_dim": 64}, {"head_dim": 80, "causal": False}, {"num_kv_heads": 4},
])  # fmt: skip
def test_options(options):
    check([70, 9], **options)


def test_an_upper_bound_of_the_longest_request_is_enough():
    case = varlen_case([5, 9])
    bounded = replace(case, options={**case.options, "max_query_len": 500})
    assert torch.equal(bounded.run(varlen_attention), case.run(varlen_attention))


def test_rows_of_no_request_are_zero():
    case = varlen_case([5, 9])
    assert not varlen_attention(*case.tensors, **case.options)[14:].any()


def test_no_tokens_at_all():
    assert check([0]).shape == (0, 4, 32)


def test_nan_of_one_request_stays_in_its_rows():
    case = varlen_case([5, 70, 3], causal=False)
    clean = case.run(varlen_attention)
    for tensor in (case.query, case.key, case.value):
        tensor[case.rows(1)] = math.nan
    dirty = case.run(varlen_attention)
    assert bool(dirty[case.rows(1)].isnan().all())
    for r in (0, 2):
        assert torch.equal(dirty[case.rows(r)], clean[case.rows(r)])


@pytest.mark.parametrize("causal", [True, False])
def test_bits_do_not_depend_on_batch_mates(causal):
    case = varlen_case([9, 130, 1, 64], causal=causal, sinks=torch.randn(4))
    together = case.run(varlen_attention)
    for order in ([1], [3, 0], [2, 1, 3]):
        batch = case.select(order)
        out = batch.run(varlen_attention)
        for place, request in enumerate(order):
            assert torch.equal(out[batch.rows(place)], together[case.rows(request)]), (order, request)


def test_the_bits_are_those_of_a_prompt_in_the_paged_cache():
    paged = attention_case([100], [100], page=16)
    blocks = paged.block_table[0, :7].long()
    key, value = (cache[blocks].flatten(0, 1)[:100] for cache in (paged.key_cache, paged.value_cache))
    packed = varlen_attention(paged.query, key, value, start_locations([100]), **paged.options)
    assert torch.equal(packed, paged.run(paged_attention))

"""CPU paged attention: parity with the reference, and the same bits for a row however it is batched and paged."""

import math
from dataclasses import replace

import pytest
import torch

from kernels import reference
from kernels.cpu.attention_tile import TILE
from kernels.cpu.paged_attention import paged_attention
from kernels.testing import attention_case, check_attention, random_attention_case


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def check(*args, **options):
    return check_attention(attention_case(*args, **options), paged_attention)


def repaged(case, page):
    """The same contexts over pages of another size."""
    num_blocks = [math.ceil(length / page) for length in case.seq_lens.tolist()]
    block_table = torch.zeros(len(num_blocks), max(num_blocks), dtype=torch.int32)
    caches = torch.full((2, sum(num_blocks) + 1, page, *case.key_cache.shape[2:]), math.nan)
    first = 1
    for r, length in enumerate(case.seq_lens.tolist()):
        block_table[r, : num_blocks[r]] = torch.arange(first, first + num_blocks[r])
        positions, old = torch.arange(length), case.key_cache.shape[1]
        for cache, source in zip(caches, (case.key_cache, case.value_cache), strict=True):
            cells = source[case.block_table[r, positions // old].long(), positions % old]
            cache[block_table[r, positions // page].long(), positions % page] = cells
        first += num_blocks[r]
    return replace(case, key_cache=caches[0], value_cache=caches[1], block_table=block_table)


def chunked(case, request, chunk):
    """One request's queries, `chunk` at a time, each over the context it has by then."""
    rows = case.rows(request)
    context = int(case.seq_lens[request]) - (rows.stop - rows.start)
    outputs = []
    for first in range(rows.start, rows.stop, chunk):
        count = min(chunk, rows.stop - first)
        part = replace(
            case,
            query=case.query[first : first + count],
            block_table=case.block_table[request : request + 1],
            seq_lens=torch.tensor([context + first - rows.start + count], dtype=torch.int32),
            query_start_loc=torch.tensor([0, count], dtype=torch.int32),
            options={**case.options, "max_query_len": count},
        )
        outputs.append(part.run(paged_attention))
    return torch.cat(outputs)


@pytest.mark.parametrize("seed", range(40))
def test_random_cases(seed):
    check_attention(random_attention_case(seed, dtype=torch.float32), paged_attention)


@pytest.mark.parametrize("head_dim", [8, 20, 64, 80, 96, 128, 192, 256])
@pytest.mark.parametrize("page", [1, 12, 16, 128])
def test_every_head_dim_on_every_page_size(head_dim, page):
    check([1, 6], [20, 90], head_dim=head_dim, page=page)


@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 65])
def test_groups_of_query_heads(group):
    check([1, 2, 5], [9, 17, 70], num_query_heads=2 * group)


@pytest.mark.parametrize("seq_len", [1, TILE - 1, TILE, TILE + 1, 2 * TILE, 2 * TILE + 1])
def test_contexts_around_the_tile_edges(seq_len):
    check([1, min(3, seq_len), seq_len], [seq_len] * 3)


@pytest.mark.parametrize("window", [1, 2, TILE - 1, TILE, TILE + 1, 500])
def test_windows_around_the_tile_edges(window):
    check([1, 9, 130], [200, 130, 130], window=window)


@pytest.mark.parametrize("window", [1, 3, TILE - 1, TILE, TILE + 1, 500])
def test_a_window_without_causality_reaches_as_far_into_the_future(window):
    check([1, 9, 130], [200, 130, 130], window=window, causal=False)


def test_scores_far_from_zero_neither_overflow_nor_vanish():
    case = attention_case([1, 70], [150, 70], scale=20.0)  # scores reach ±400, where float32 resolves 3e-5
    expected = reference.paged_attention(*case.tensors, **case.options)
    assert torch.allclose(case.run(paged_attention), expected, atol=2e-4)


def test_softcap_applies_before_the_mask_and_alibi():
    slopes = torch.tensor([0.5, 0.25, 0.1, 0.0])
    check([1, 20], [100, 20], softcap=2.0, alibi_slopes=slopes, scale=3.0)


def test_scales_of_keys_and_values_are_applied_once_each():
    check([1, 20], [100, 20], k_scale=0.25, v_scale=3.0)


def test_block_table_is_not_read_past_its_end():
    case = attention_case([1, 5], [33, 47], page=16)
    check_attention(replace(case, block_table=case.block_table[:, :3]), paged_attention)


def test_garbage_in_unneeded_block_table_entries_is_not_followed():
    case = attention_case([1, 5], [10, 47], page=16)
    case.block_table[0, 1:] = 2**31 - 1
    case.block_table[1, 3:] = -(2**31)
    check_attention(case, paged_attention)


def test_rows_without_a_visible_key_are_zero():
    case = attention_case([2, 0, 1], [2, 0, 40])
    blind = replace(case, seq_lens=torch.tensor([0, 0, 40], dtype=torch.int32))
    out = check_attention(blind, paged_attention)
    assert torch.equal(out[:2], torch.zeros_like(out[:2])) and bool(out[2].any())


def test_a_sink_alone_gives_zero():
    case = attention_case([2], [2], sinks=torch.tensor([0.0, 1.0, -1.0, 5.0]))
    out = replace(case, seq_lens=torch.tensor([0], dtype=torch.int32)).run(paged_attention)
    assert torch.equal(out, torch.zeros_like(out))


def test_rows_of_no_request_are_zero():
    case = attention_case([1, 3], [30, 3])
    padded = replace(case, query=torch.cat([case.query, torch.full((2, *case.query.shape[1:]), math.nan)]))
    assert torch.equal(padded.run(paged_attention)[4:], torch.zeros(2, *case.query.shape[1:]))


def test_no_tokens_at_all():
    assert attention_case([0], [5]).run(paged_attention).shape == (0, 4, 32)


def test_nan_of_one_request_stays_in_its_rows():
    case = attention_case([1, 40, 1], [80, 40, 80])
    clean = case.run(paged_attention)
    case.key_cache[case.block_table[1, 0].long()] = math.nan
    dirty = case.run(paged_attention)
    assert bool(dirty[case.rows(1)].isnan().any())
    assert torch.equal(dirty[case.rows(0)], clean[case.rows(0)])
    assert torch.equal(dirty[case.rows(2)], clean[case.rows(2)])


def test_only_float32_is_taken():
    case = attention_case([1], [5], dtype=torch.float16)
    with pytest.raises(ValueError, match="float32"):
        paged_attention(*case.tensors, **case.options)


OPTIONS = {
    "plain": {},
    "grouped 7": {"num_query_heads": 14, "head_dim": 64},
    "single": {"num_query_heads": 2, "num_kv_heads": 2},
    "narrow head": {"head_dim": 20},
    "window": {"window": 70},
    "everything": {
        "window": 90, "softcap": 5.0, "alibi_slopes": torch.tensor([0.5, 0.1, 0.0, 0.3]),
        "sinks": torch.tensor([0.3, -1.0, 0.0, 2.0]), "k_scale": 0.5, "v_scale": 2.0,
    },
}  # fmt: skip
CASES = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


@CASES
def test_bits_do_not_depend_on_batch_mates(options):
    case = attention_case([1, 70, 1, 9], [150, 200, 64, 73], **options)
    together = case.run(paged_attention)
    for r in range(4):
        assert torch.equal(case.select([r]).run(paged_attention), together[case.rows(r)])
    swapped = case.select([3, 1]).run(paged_attention)
    assert torch.equal(swapped, torch.cat([together[case.rows(3)], together[case.rows(1)]]))


@CASES
@pytest.mark.parametrize("chunk", [1, 3, 16, 64, 100])
def test_bits_do_not_depend_on_chunking(options, chunk):
    case = attention_case([1, 150], [5, 170], **options)
    assert torch.equal(chunked(case, 1, chunk), case.run(paged_attention)[case.rows(1)])


@CASES
@pytest.mark.parametrize("page", [1, 5, 64, 256])
def test_bits_do_not_depend_on_the_page_size(options, page):
    case = attention_case([1, 70], [150, 200], page=16, **options)
    assert torch.equal(repaged(case, page).run(paged_attention), case.run(paged_attention))


@CASES
def test_bits_do_not_depend_on_the_layout_of_the_query(options):
    case = attention_case([1, 70], [150, 200], **options)
    contiguous = replace(case, query=case.query.contiguous())
    assert not case.query.is_contiguous()
    assert torch.equal(contiguous.run(paged_attention), case.run(paged_attention))


@pytest.mark.parametrize("num_threads", [1, 3, 8])
def test_bits_do_not_depend_on_the_number_of_threads(num_threads):
    case = attention_case([1, 70, 1, 9], [150, 300, 64, 73], num_query_heads=14)
    expected = case.run(paged_attention)
    torch.set_num_threads(num_threads)
    assert torch.equal(case.run(paged_attention), expected)

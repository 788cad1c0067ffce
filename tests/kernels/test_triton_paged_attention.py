"""Triton paged attention, interpreted: parity with the reference, and one test for each known kind of fault."""

from dataclasses import replace

import pytest
import torch

from kernels.testing import assert_close, attention_case, check_attention, random_attention_case
from kernels.triton import configs
from kernels.triton.paged_attention import paged_attention, split_head_dim

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in")  # numpy's, where softcap saturates

TILE = 16  # keys and rows of an interpreted tile
SPLIT = 32
CONFIG = configs.attention("interpreter", 32, torch.float32)


def check(*args, **options):
    return check_attention(attention_case(*args, **options), paged_attention)


def test_the_interpreted_tiles_are_what_these_tests_assume():
    assert (CONFIG.extend_rows, CONFIG.extend_tile, CONFIG.decode_tile) == (TILE, TILE, TILE)
    assert (CONFIG.split_tokens, CONFIG.max_splits, CONFIG.short_query) == (SPLIT, 4, 4)


@pytest.mark.parametrize("seed", range(10))
def test_random_cases(seed):
    check_attention(random_attention_case(seed), paged_attention)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_many_random_cases(seed):
    check_attention(random_attention_case(seed), paged_attention)


@pytest.mark.exhaustive
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 192, 256])
@pytest.mark.parametrize("page", [1, 12, 16, 32, 64, 128])
def test_every_head_dim_on_every_page_size(head_dim, page):
    check([1, 6], [20, 37], head_dim=head_dim, page=page)


def test_stale_tail_of_the_last_page_is_not_read():
    check([1, 5], [17, 33], page=64)


def test_block_table_is_not_read_past_its_end():
    case = attention_case([1, 5], [33, 47], page=16)
    check_attention(replace(case, block_table=case.block_table[:, :3]), paged_attention)


@pytest.mark.parametrize("page", [1, 5, 12, 64])
def test_page_sizes_off_the_tile(page):
    check([1, 6], [35, 35], page=page)


@pytest.mark.parametrize("group", [1, 5, 6, 7])
def test_groups_of_query_heads_that_do_not_fill_the_rows(group):
    check([1, 2, 5], [9, 17, 17], num_query_heads=2 * group)


def test_a_group_wider_than_the_rows_widens_them():
    check([1, 5], [9, 17], num_query_heads=20, num_kv_heads=1)


@pytest.mark.parametrize("head_dim", [72, 80, 96, 192])
def test_head_dims_that_are_no_power_of_two_stay_inside_their_head(head_dim):
    check([1, 5], [17, 17], head_dim=head_dim)


def test_head_dim_splits_cover_the_head_without_waste():
    parts = {d: split_head_dim(d) for d in (32, 64, 72, 80, 96, 112, 128, 192, 256)}
    assert parts == {
        32: (32, 0), 64: (64, 0), 72: (64, 32), 80: (64, 32), 96: (64, 32), 112: (64, 64), 128: (128, 0),
        192: (128, 64), 256: (256, 0),
    }  # fmt: skip


@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 32, 100])
def test_window_keeps_exactly_the_keys_less_than_window_back(window):
    check([1, 20], [50, 50], window=window)


def test_splits_wholly_outside_the_window_weigh_nothing():
    check([1, 2], [110, 100], window=3)


def test_window_without_causality_bounds_past_and_future():
    check([1, 20], [50, 50], window=7, causal=False)


def test_not_causal_sees_the_keys_after_the_query():
    check([1, 3, 20], [20, 20, 30], causal=False)


def test_softcap_comes_before_the_mask():
    check([1, 6], [33, 33], softcap=0.5)


def test_softcap_of_huge_scores_saturates():
    check([1, 6], [33, 33], softcap=30.0, scale=1e4)


def test_alibi_slope_per_head_is_added_after_the_softcap():
    check([1, 6], [33, 33], alibi_slopes=torch.tensor([0.5, 0.25, 1.0, 0.0]), softcap=2.0)


def test_sink_takes_part_once_whatever_the_number_of_splits():
    check([1, 2, 6], [3, 100, 33], sinks=torch.tensor([3.0, -2.0, 0.0, 8.0]))


def test_sink_below_every_score_and_far_above():
    check([1, 6], [40, 33], sinks=torch.tensor([-1000.0, 1000.0, 0.0, 80.0]))


@pytest.mark.parametrize("q_lens", [[1, 1], [6, 1]])
def test_fp8_cache_applies_each_scale_once(q_lens):
    check(q_lens, [40, 33], cache_dtype=torch.float8_e4m3fn, k_scale=0.5, v_scale=3.0)


def test_everything_at_once():
    options = {"window": 20, "softcap": 3.0, "alibi_slopes": torch.rand(10) / 4, "sinks": torch.randn(10)}
    check(
        [1, 9, 0, 3], [45, 33, 7, 50], num_query_heads=10, head_dim=80, page=12, cache_dtype=torch.float8_e4m3fn,
        k_scale=0.5, v_scale=2.0, **options,
    )  # fmt: skip


@pytest.mark.parametrize("q_lens", [[2, 1], [6, 1]])
def test_fp8_cache_under_bfloat16_queries_is_multiplied_in_float16(q_lens):
    options = {"cache_dtype": torch.float8_e4m3fn, "k_scale": 0.5, "v_scale": 3.0}
    case = attention_case(q_lens, [40, 33], dtype=torch.bfloat16, **options)
    check_attention(case, paged_attention)
    huge = replace(case, query=torch.full_like(case.query, 1e5))  # float16 ends at 65504
    assert huge.run(paged_attention).isfinite().all()


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("q_lens", [[3, 1], [9, 1]])
def test_fully_masked_row_is_exactly_zero_in_one_split_and_in_several(q_lens, width):
    """Rows before the context's first token: no key, so that every partial sum is 0 and every maximum the floor."""
    case = attention_case(q_lens, [q_lens[0] - 2, 9])
    table = torch.nn.functional.pad(case.block_table, (0, width - 1))
    out = check_attention(replace(case, block_table=table), paged_attention)
    assert not out[:2].any() and out[2:].all()


@pytest.mark.parametrize("q_lens", [[2, 1], [6, 1]])
def test_query_of_any_strides(q_lens):
    """A view of packed QKV, as attention_case makes it; contiguous; with the heads outermost: the same bits."""
    case = attention_case(q_lens, [20, 33])
    assert not case.query.is_contiguous()
    expected = check_attention(case, paged_attention)
    for query in (case.query.contiguous(), case.query.transpose(0, 1).contiguous().transpose(0, 1)):
        assert torch.equal(replace(case, query=query).run(paged_attention), expected)


@pytest.mark.parametrize("sinks", [None, torch.zeros(4)])
@pytest.mark.parametrize("width", [1, 4])
def test_padding_row_of_length_zero_is_exactly_zero(width, sinks):
    case = attention_case([1, 1, 1], [0, 9, 0], sinks=sinks)
    table = torch.nn.functional.pad(case.block_table, (0, width - 1))  # width 4: several splits to merge
    out = check_attention(replace(case, block_table=table), paged_attention)
    assert not out[0].any() and not out[2].any()


def test_zero_length_chunk_inside_a_batch():
    check([0, 5, 0, 0, 1, 0], [8, 9, 0, 3, 4, 20])


def test_empty_batch_gives_an_empty_result():
    case = attention_case([1], [4])
    nothing = replace(
        case, query=case.query[:0], block_table=case.block_table[:0], seq_lens=case.seq_lens[:0],
        query_start_loc=case.query_start_loc[:1],
    )  # fmt: skip
    assert nothing.run(paged_attention).shape == (0, 4, 32)


def test_offsets_beyond_32_bits(monkeypatch):
    """A page whose first element lies 2**31 elements into the cache; its pages are never touched, so not resident."""
    from triton.runtime.interpreter import GridExecutor

    monkeypatch.setattr(GridExecutor, "_restore_args_dev", lambda *args: None)  # it would copy the cache onto itself
    case = attention_case([1, 5], [9, 13], num_query_heads=2, num_kv_heads=1, dtype=torch.float16, page=16)
    far = 2**31 // (16 * 32)
    cache = torch.empty(far + 3, 16, 1, 32, dtype=torch.float16)
    cache[far : far + 3] = case.key_cache
    moved = replace(case, key_cache=cache, value_cache=cache, block_table=case.block_table + far)
    near = replace(case, value_cache=case.key_cache)
    assert torch.equal(moved.run(paged_attention), near.run(paged_attention))


@pytest.mark.parametrize("options", [{}, {"softcap": 3.0, "alibi_slopes": torch.tensor([0.5, 0.125])}], ids=len)
@pytest.mark.parametrize("chunk", [1, 4, 5, 15, 16, 17, 31, 32, 33, 36])
def test_every_chunking_of_a_prompt_gives_the_one_shot_rows(chunk, options):
    whole = attention_case([37], [37], num_query_heads=2, **options)
    last = replace(
        whole, query=whole.query[-chunk:], query_start_loc=torch.tensor([0, chunk], dtype=torch.int32),
        options={**whole.options, "max_query_len": chunk},
    )  # fmt: skip
    expected, out = whole.run(paged_attention)[-chunk:], last.run(paged_attention)
    if chunk > CONFIG.short_query:
        assert torch.equal(out, expected)  # the same specialisation: the same bits
    assert_close(out, expected, 37)


@pytest.mark.parametrize("window", [0, 20])
def test_a_row_is_the_same_to_the_bit_in_every_batch(window):
    """Alone, beside others in another order, beside a prompt or not, with a wider block table (more splits)."""
    case = attention_case([1, 3, 9, 1], [70, 50, 20, 31], window=window, num_query_heads=2, num_kv_heads=1)
    together = case.run(paged_attention)
    for order in ([0], [2, 1], [3, 0, 2]):
        batch = case.select(order)
        widened = replace(batch, block_table=torch.nn.functional.pad(batch.block_table, (0, 3)))
        out = widened.run(paged_attention)
        for place, request in enumerate(order):
            assert torch.equal(out[batch.rows(place)], together[case.rows(request)]), (order, request)


def test_one_split_written_directly_has_the_bits_of_one_split_merged():
    case = attention_case([1], [30])
    direct = replace(case, block_table=case.block_table[:, :2])  # 32 tokens: one split
    assert torch.equal(direct.run(paged_attention), case.run(paged_attention))


@pytest.mark.parametrize(("split_tokens", "max_splits"), [(16, 8), (48, 2), (48, 4), (128, 4)])
def test_any_number_of_splits_agrees(split_tokens, max_splits):
    case = attention_case([1, 2], [100, 61], sinks=torch.zeros(2), num_query_heads=2, num_kv_heads=1)
    config = replace(CONFIG, split_tokens=split_tokens, max_splits=max_splits)
    check_attention(case, paged_attention, config=config)


def test_a_context_longer_than_the_splits_takes_multiples_of_one():
    check([1], [5 * SPLIT + 3])


def test_configurations_exist_for_every_head_dim_and_refuse_wider_ones():
    for arch in ("sm_80", "sm_90", "sm_100", "gfx942"):
        for head_dim in (64, 80, 96, 128, 192, 256):
            for dtype in (torch.bfloat16, torch.float32):
                for scores in configs.Scores:
                    config = configs.attention(arch, head_dim, dtype, scores)
                    assert config.split_tokens % config.decode_tile == 0  # splits start on a tile
        with pytest.raises(ValueError, match=r"head_dim must be at most 256, got 512"):
            configs.attention(arch, 512, torch.bfloat16)


def test_configurations_follow_what_is_done_to_the_scores():
    of = configs.Scores.of
    assert [of(0, 0.0, False), of(9, 0.0, False), of(9, 5.0, False), of(0, 0.0, True)] == [0, 1, 2, 2]
    rows = [configs.attention("sm_80", 128, torch.bfloat16, scores).extend_rows for scores in configs.Scores]
    assert rows == [128, 64, 64]

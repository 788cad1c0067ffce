"""The harness itself: each way of being wrong that it is there for must be caught."""

import pytest
import torch
import triton
import triton.language as tl

from kernels import reference
from kernels.testing import assert_close, attention_case, bounds_checked, check_attention, nan_allocations


def test_the_reference_passes():
    check_attention(attention_case([3, 0, 1], [20, 5, 17], page=5), reference.paged_attention)


def test_a_kernel_that_reads_the_tail_of_the_last_page_is_caught():
    def reads_whole_pages(query, key_cache, value_cache, block_table, seq_lens, starts, **options):
        seq_lens = (seq_lens + 15) // 16 * 16
        return reference.paged_attention(query, key_cache, value_cache, block_table, seq_lens, starts, **options)

    with pytest.raises(AssertionError, match="NaN"):
        check_attention(attention_case([1], [17]), reads_whole_pages)


def test_a_kernel_that_leaves_rows_unwritten_is_caught():
    def forgets_the_last_row(query, *args, **options):
        out = torch.empty_like(query)
        out[:-1] = reference.paged_attention(query, *args, **options)[:-1]
        return out

    with pytest.raises(AssertionError, match="NaN"):
        check_attention(attention_case([2], [17]), forgets_the_last_row)


def test_a_kernel_that_writes_its_input_is_caught():
    def scales_in_place(query, *args, **options):
        out = reference.paged_attention(query, *args, **options)
        query.mul_(2)
        return out

    with pytest.raises(AssertionError, match="an input was written"):
        check_attention(attention_case([2], [17]), scales_in_place)


def test_one_wrong_element_and_a_small_bias_are_both_caught():
    expected = torch.linspace(-3, 3, 1000)
    assert_close(expected.clone(), expected, 1)
    spike = expected.clone()
    spike[5] += 1e-5
    with pytest.raises(AssertionError, match="largest error"):
        assert_close(spike, expected, 1)
    with pytest.raises(AssertionError, match="RMS error"):
        assert_close(expected * (1 + 7e-7), expected, 1)


def test_allocations_are_nan_inside_only():
    with nan_allocations():
        assert torch.empty(4).isnan().all()
    assert not torch.are_deterministic_algorithms_enabled()


@triton.jit
def _copy(out, x, n, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(out + lanes, tl.load(x + lanes, mask=lanes < n), mask=lanes < n)


@pytest.mark.parametrize("cut", ["input", "output"])
def test_an_address_past_a_view_is_caught(cut):
    x, out = torch.ones(16), torch.zeros(16)
    with bounds_checked():
        _copy[(1,)](out, x, 16, BLOCK=16)
        with pytest.raises(Exception, match="addresses lie outside every argument"):
            _copy[(1,)](out[: 15 if cut == "output" else 16], x[: 15 if cut == "input" else 16], 16, BLOCK=16)

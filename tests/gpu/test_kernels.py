"""The kernels as compiled for this card: the NaN harness, every op against float64, batch invariance to the bit."""

from dataclasses import replace

import pytest
import torch

from bench.kernel_checks import checks, run_check
from kernels import ops, reference
from kernels.testing import AttentionCase, assert_close, attention_case, random_attention_case

# Built for a device that is not asked for anything: collection needs no card.
CHECKS = [check.name for check in checks(torch.device("cuda", 0))]


@pytest.mark.parametrize("name", CHECKS)
def test_every_op_is_right_against_float64(name, device):
    [check] = [check for check in checks(device) if check.name == name]
    found = run_check(check)
    assert found.failure is None, found


def on(device: torch.device, case: AttentionCase) -> AttentionCase:
    """The case on a device, its query still a view with NaN around it."""
    num_tokens, num_heads, head_dim = case.query.shape
    packed = torch.full((num_tokens, num_heads + 2, head_dim), torch.nan, dtype=case.query.dtype, device=device)
    moved = {
        name: getattr(case, name).to(device)
        for name in ("key_cache", "value_cache", "block_table", "seq_lens", "query_start_loc")
    }
    options = {
        name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in case.options.items()
    }
    return replace(case, query=packed[:, :num_heads].copy_(case.query), options=options, **moved)


def assert_right(case: AttentionCase, device: torch.device) -> None:
    expected = reference.paged_attention(*case.tensors, **case.options)
    assert_close(on(device, case).run(ops.paged_attention).cpu(), expected, int(case.seq_lens.max()), "attention")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("seed", range(20))
def test_random_cases_in_a_cache_of_nan(seed, dtype, device):
    assert_right(random_attention_case(seed, dtype=dtype), device)


@pytest.mark.parametrize("page", [1, 12, 16, 64, 128])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 192, 256])
def test_every_head_dim_on_every_page_size_in_a_cache_of_nan(head_dim, page, device):
    lengths = [1, 6, 0, 130, 4], [700, 37, 9, 400, 64]
    assert_right(attention_case(*lengths, head_dim=head_dim, page=page, dtype=torch.bfloat16), device)


@pytest.mark.parametrize("window", [0, 200])
def test_a_row_is_the_same_to_the_bit_in_every_batch(window, device):
    """Alone, in another order, beside a prompt or not."""
    case = attention_case(
        [1, 3, 90, 1], [1500, 700, 200, 31], window=window, num_query_heads=8, head_dim=128, page=64,
        dtype=torch.bfloat16,
    )  # fmt: skip
    together = on(device, case).run(ops.paged_attention)
    for order in ([0], [2, 1], [3, 0, 2]):
        batch = case.select(order)
        out = on(device, batch).run(ops.paged_attention)
        for place, request in enumerate(order):
            assert torch.equal(out[batch.rows(place)], together[case.rows(request)]), (order, request)

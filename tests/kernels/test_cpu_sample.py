"""CPU sampling: the reference's token, whatever the filters, ties, batch and vocabulary size."""

import itertools
import math

import pytest
import torch

from kernels import reference
from kernels.cpu.sample import sample
from kernels.testing import nan_allocations


def arguments(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=0, choice=1, first_position=5):
    rows = logits.shape[0]

    def column(value, dtype):
        return torch.full((rows,), value, dtype=dtype)

    return (
        logits, column(temperature, torch.float32), column(top_k, torch.int32), column(top_p, torch.float32),
        column(min_p, torch.float32), column(seed, torch.int64), column(choice, torch.int32),
        torch.arange(first_position, first_position + rows, dtype=torch.int32),
    )  # fmt: skip


def logits(rows, vocab, seed=0, spread=3.0, step=None):
    values = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread
    return (values / step).round() * step if step else values


def check(*args, **options):
    inputs = arguments(*args, **options)
    with nan_allocations():
        out = sample(*inputs)
    assert out.tolist() == reference.sample(*inputs).tolist()
    return out.tolist()


@pytest.mark.parametrize("seed", [0, 1, -1, 2**40 + 7, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("choice", [0, 3])
def test_unfiltered_rows_draw_the_reference_tokens(seed, choice):
    assert len(set(check(logits(20, 300), temperature=1.7, seed=seed, choice=choice))) > 1


@pytest.mark.parametrize("step", [None, 1.0], ids=["distinct", "ties"])
@pytest.mark.parametrize("top_k", [0, 1, 5, 100])
def test_every_mix_of_filters(top_k, step):
    for top_p, min_p, temperature in itertools.product((0.0, 0.1, 0.9, 1.0), (0.0, 0.05, 1.0), (0.3, 5.0)):
        check(logits(4, 100, step=step), temperature, top_k, top_p, min_p)


FILTERS = [{}, {"top_k": 50}, {"top_k": 3000}, {"top_p": 0.9}, {"top_k": 50, "top_p": 0.5}, {"min_p": 0.1}]


@pytest.mark.parametrize("spread", [0.01, 3.0, 20.0])
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_a_real_vocabulary(spread, filters):
    check(logits(3, 50_257, spread=spread), **filters)


@pytest.mark.parametrize("vocab", [1, 2, 15, 16, 17, 1024, 1025])
def test_vocabularies_that_do_not_fill_the_vectors(vocab):
    check(logits(4, vocab), temperature=0.8, top_k=3, top_p=0.8)
    check(logits(4, vocab), temperature=2.0)
    check(logits(4, vocab), temperature=0.0)


def test_greedy_takes_the_lowest_of_tied_ids_and_ignores_the_filters():
    values = torch.tensor([[0.0, 3.0, 1.0, 3.0], [-math.inf, -2.0, -2.0, -3.0]])
    assert sample(*arguments(values, 0.0, top_k=1, top_p=0.1)).tolist() == [1, 1]
    assert sample(*arguments(values, 9.9e-6)).tolist() == [1, 1]


def test_cold_but_not_greedy_rows_with_huge_scaled_values():
    check(logits(8, 300, spread=30.0), temperature=1.1e-5)
    check(logits(8, 300, spread=1e-4), temperature=1.1e-5, top_p=0.9)


def test_banned_ids_are_never_drawn():
    values = logits(50, 40)
    values[:, ::2] = -math.inf
    assert all(token % 2 for token in check(values, temperature=5.0))
    assert all(token % 2 for token in check(values, temperature=5.0, top_k=30, top_p=0.99))


def test_a_row_with_every_id_banned_gives_a_valid_id():
    assert sample(*arguments(torch.full((1, 40), -math.inf))).tolist() == [0]
    assert 0 <= sample(*arguments(torch.full((1, 40), math.nan))).item() < 40


def test_minus_zero_ranks_as_zero():
    values = torch.tensor([[-0.0, 0.0, -0.0, 0.0, -5.0]]).repeat(20, 1)
    assert set(check(values, top_k=2)) == {0, 1}


def test_draws_follow_the_filtered_distribution():
    probabilities = torch.tensor([0.4, 0.3, 0.2, 0.1])
    out = sample(*arguments(probabilities.log().repeat(20_000, 1), top_p=0.85))
    counts = torch.bincount(out, minlength=4) / 20_000
    assert torch.allclose(counts, torch.tensor([4 / 9, 3 / 9, 2 / 9, 0.0]), atol=0.015)


def test_a_row_does_not_depend_on_the_rows_beside():
    values = logits(9, 500)
    inputs = arguments(values, top_k=40, top_p=0.9)
    together = sample(*inputs)
    for row in range(9):
        assert sample(*(tensor[row : row + 1] for tensor in inputs)).item() == together[row]

"""Triton's sampler, interpreted: the same token as the reference, ties and filters included."""

import math

import pytest
import torch

from kernels import reference
from kernels.testing import nan_allocations
from kernels.triton import configs
from kernels.triton.sample import sample


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Two blocks a row, the second one partial."""
    monkeypatch.setattr(configs, "SAMPLE_BLOCK", 32)


def arguments(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=0, first_position=5):
    rows = logits.shape[0]

    def column(value, dtype):
        return torch.full((rows,), value, dtype=dtype)

    return (
        logits, column(temperature, torch.float32), column(top_k, torch.int32), column(top_p, torch.float32),
        column(min_p, torch.float32), column(seed, torch.int64), column(1, torch.int32),
        torch.arange(first_position, first_position + rows, dtype=torch.int32),
    )  # fmt: skip


def logits(rows, vocab=48, seed=0, step=None):
    values = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * 2
    return (values / step).round() * step if step else values


def check(*args, **options):
    inputs = arguments(*args, **options)
    with nan_allocations():
        out = sample(*inputs)
    assert out.tolist() == reference.sample(*inputs).tolist()
    return out.tolist()


@pytest.mark.parametrize("seed", [0, 1, -1, 2**40 + 7, -(2**63)])
def test_unfiltered_rows_draw_the_reference_tokens(seed):
    assert len(set(check(logits(6), temperature=1.7, seed=seed))) > 1


def test_the_noise_is_the_reference_noise():
    """Flat logits: the winner is the id with the largest draw, so one different bit in the generator shows."""
    check(torch.zeros(16, 48), seed=99)


@pytest.mark.parametrize(
    "filters",
    [
        {"top_k": 1}, {"top_k": 5}, {"top_k": 48}, {"top_p": 0.0}, {"top_p": 0.3}, {"top_p": 0.9}, {"min_p": 0.1},
        {"min_p": 1.0}, {"top_k": 7, "top_p": 0.8}, {"top_k": 7, "top_p": 0.8, "min_p": 0.2},
    ],
    ids=str,
)  # fmt: skip
def test_filtered_rows_draw_the_reference_tokens(filters):
    check(logits(2), temperature=3.0, seed=5, **filters)


@pytest.mark.parametrize("filters", [{"top_k": 6}, {"top_p": 0.55}, {"top_k": 9, "top_p": 0.9}], ids=str)
def test_ties_on_the_edge_of_a_filter_stay_lowest_ids_first(filters):
    check(logits(3, step=2.0), temperature=3.0, **filters)


@pytest.mark.parametrize("filters", [{"top_k": 3}, {"top_p": 0.05}, {"top_k": 40, "top_p": 0.07}], ids=str)
def test_flat_logits_keep_the_lowest_ids(filters):
    drawn = check(torch.full((4, 48), -1.5), **filters)
    assert set(drawn) <= {0, 1, 2}


def test_minus_zero_ties_with_zero():
    check(torch.tensor([[-0.0, 0.0] * 24] * 4), top_k=2)


def test_top_k_larger_than_what_is_finite():
    row = torch.full((3, 48), -math.inf)
    row[:, [3, 40]] = torch.tensor([1.0, 0.5])
    assert set(check(row, top_k=10)) <= {3, 40}
    assert set(check(row, top_p=0.99)) <= {3, 40}


def test_greedy_rows_take_the_lowest_of_tied_ids_across_blocks():
    row = torch.zeros(1, 48)
    row[0, [45, 33, 13]] = 4.0
    assert check(row, temperature=0.0) == [13]
    assert check(row, temperature=0.0, top_k=1, top_p=0.1) == [13]


def test_masked_logits_are_never_taken():
    row = torch.full((2, 48), -math.inf)
    row[:, 37] = -50.0
    assert check(row) == [37, 37]
    assert check(row, temperature=0.0) == [37, 37]


@pytest.mark.filterwarnings("ignore:All-NaN slice")
def test_a_row_of_nan_still_names_an_id_of_the_vocabulary():
    out = sample(*arguments(torch.full((1, 48), math.nan)))
    assert 0 <= int(out[0]) < 48


def test_a_batch_of_different_rows_equals_each_row_alone():
    values = logits(4)
    options = [{"temperature": 0.0}, {"top_k": 3}, {"top_p": 0.5, "seed": 9}, {"temperature": 0.7, "min_p": 0.05}]
    alone = [arguments(values[i : i + 1], first_position=i, **options[i]) for i in range(4)]
    together = sample(*(torch.cat(column) for column in zip(*alone, strict=True)))
    assert together.tolist() == [int(sample(*row)) for row in alone]


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(60))
def test_many_random_filters(seed):
    rng = torch.Generator().manual_seed(seed)
    draw = torch.rand(4, generator=rng).tolist()
    check(
        logits(4, vocab=100, seed=seed, step=0.5 if seed % 2 else None), temperature=0.2 + 3 * draw[0],
        top_k=int(draw[1] * 60), top_p=draw[2], min_p=draw[3] / 20, seed=seed,
    )  # fmt: skip

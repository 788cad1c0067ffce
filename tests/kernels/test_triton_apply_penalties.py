"""Triton's penalties, interpreted: parity with the reference on ragged lists, and nothing else of a row touched."""

import math

import pytest
import torch

from kernels.triton import configs
from kernels.triton.apply_penalties import apply_penalties
from tests.kernels.penalties_case import alone, check_penalties, penalties_case


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Several iterations over a list, and over the bitmask."""
    monkeypatch.setattr(configs, "PENALTY_IDS", 32)


@pytest.mark.parametrize("bitmask", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_random_cases(seed, bitmask):
    check_penalties(apply_penalties, seed=seed, bitmask=bitmask)


@pytest.mark.parametrize("length", [31, 32, 33, 64, 70])
def test_lists_around_the_block_edges(length):
    check_penalties(apply_penalties, (length, 1), (length, 0), (0, length))


def test_a_token_is_penalised_then_biased_then_masked():
    case = penalties_case((70,), (70,), (35,))
    logits = check_penalties(apply_penalties, (70,), (70,), (35,))
    masked = (logits[0] == -math.inf).nonzero().flatten().tolist()
    assert masked == sorted(case["ending_ids"].tolist())


def test_rows_without_lists_keep_their_bits():
    logits = check_penalties(apply_penalties, (0, 0), (0, 0), (0, 0))
    assert logits.isnan().all()


def test_neutral_parameters_keep_the_bits():
    case = penalties_case((40,), (0,), (0,))
    case["repetition"].fill_(1.0)
    case["frequency"].zero_()
    case["presence"].zero_()
    before = case["logits"].clone()
    apply_penalties(**case)
    assert torch.equal(case["logits"].view(torch.int32), before.view(torch.int32))


@pytest.mark.parametrize("vocab", [31, 32, 33, 95])
def test_bits_beyond_the_vocabulary_stay_inside_the_row(vocab):
    """Row 0 is masked whole, and the bits after its last id are 0 too; row 1 is all allowed."""
    case = penalties_case((vocab, vocab), (0, 0), (0, 0), vocab=vocab)
    words = torch.zeros(2, -(-vocab // 32), dtype=torch.int32)
    words[1] = -1
    apply_penalties(**case, bitmask=words)
    assert (case["logits"][0] == -math.inf).all() and case["logits"][1].isfinite().all()


def test_the_lowest_bit_of_the_first_word_is_token_0():
    case = penalties_case((70,), (0,), (0,))
    apply_penalties(**case, bitmask=torch.tensor([[1 | 1 << 5, -(2**31), 1 << 3]], dtype=torch.int32))
    assert case["logits"][0].isfinite().nonzero().flatten().tolist() == [0, 5, 63, 67]


def test_minus_infinity_stays():
    case = penalties_case((70,), (70,), (0,))
    case["logits"].fill_(-math.inf)
    apply_penalties(**case)
    assert (case["logits"] == -math.inf).all()


def test_a_row_is_the_same_to_the_bit_in_every_batch():
    together, apart = penalties_case(bitmask=True), penalties_case(bitmask=True)
    apply_penalties(**together)
    for row in range(3):
        part = alone(apart, row)
        apply_penalties(**part)
        assert torch.equal(part["logits"][0].view(torch.int32), together["logits"][row].view(torch.int32))

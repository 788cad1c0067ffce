"""CPU penalties: parity with the reference on ragged lists, and the same bits for a row whatever shares its batch."""

import math

import pytest
import torch

from kernels.cpu.apply_penalties import apply_penalties
from tests.kernels.penalties_case import alone, check_penalties, penalties_case


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("bitmask", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_random_cases(seed, bitmask):
    check_penalties(apply_penalties, seed=seed, bitmask=bitmask)


def test_a_token_is_penalised_then_biased_then_masked():
    check_penalties(apply_penalties, (70,), (70,), (35,), bitmask=True)


def test_many_rows_shared_among_threads():
    rows = 64
    check_penalties(apply_penalties, (2000,) * rows, (50,) * rows, (3,) * rows, vocab=3000, bitmask=True)


def test_no_rows_at_all():
    empty, starts = torch.empty(0), torch.zeros(1, dtype=torch.int32)
    ids = torch.empty(0, dtype=torch.int32)
    apply_penalties(torch.empty(0, 70), starts, ids, ids, empty, empty, empty, starts, ids, empty, starts, ids)


@pytest.mark.parametrize("vocab", [31, 32, 33, 95])
def test_bits_beyond_the_vocabulary_stay_inside_the_row(vocab):
    """Row 0 is masked whole, and the bits after its last id are 0 too; row 1 is all allowed."""
    case = penalties_case((vocab, vocab), (0, 0), (0, 0), vocab=vocab)
    words = torch.zeros(2, -(-vocab // 32), dtype=torch.int32)
    words[1] = -1
    apply_penalties(**case, bitmask=words)
    assert (case["logits"][0] == -math.inf).all() and case["logits"][1].isfinite().all()


def test_bits_do_not_depend_on_batch_mates():
    together, apart = penalties_case(bitmask=True), penalties_case(bitmask=True)
    apply_penalties(**together)
    for row in range(3):
        part = alone(apart, row)
        apply_penalties(**part)
        assert torch.equal(part["logits"][0].view(torch.int32), together["logits"][row].view(torch.int32))

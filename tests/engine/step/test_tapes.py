from functools import partial

import pytest
import torch

from engine.step.tapes import Tapes, row_counts
from kernels import ops


@pytest.mark.parametrize("max_rows", [1, 8, 100, 512, 600, 2048])
def test_sizes_waste_an_eighth_of_a_large_step_at_most(max_rows):
    sizes = row_counts(max_rows)
    assert sizes[0] == 8 and list(sizes) == sorted(set(sizes))
    assert sizes[-1] >= max_rows and all(size < max_rows for size in sizes[:-1])
    for num_rows in range(64, max_rows + 1):
        assert min(size for size in sizes if size >= num_rows) <= 1.125 * num_rows


def test_a_step_takes_the_smallest_size_that_holds_it():
    tapes = Tapes((8, 16))
    assert [tapes.size_for(count) for count in (1, 8, 9, 16, 17)] == [8, 8, 16, 16, None]


def test_kernels_are_recorded_once_for_each_size_and_replayed():
    x, weight, calls = torch.ones(4, 32), torch.ones(32), []
    tapes = Tapes((2, 4))

    def compute(size):
        calls.append(size)
        return ops.rms_norm(x[:size], weight, 0.0)

    for value in (1.0, 2.0, 3.0):
        weight.fill_(value)
        for size in (2, 4):
            assert tapes.run(size, lambda size=size: compute(size)).flatten().tolist() == [value] * (32 * size)
    assert calls == [2, 4]


def test_where_a_later_size_is_too_long_for_a_tape_all_is_computed(monkeypatch):
    x, weight, tapes = torch.ones(4, 32), torch.ones(32), Tapes((1, 4))

    def compute(times):
        for _ in range(times):
            result = ops.rms_norm(x, weight, 0.0)
        return result

    monkeypatch.setattr("kernels.cpu.recording._TAPE_WORDS", 100)
    assert tapes.run(1, partial(compute, 1)).unique().tolist() == [1.0] and tapes.is_possible
    assert tapes.run(4, partial(compute, 50)).unique().tolist() == [1.0]
    assert tapes.size_for(1) is None


def test_sizes_are_prepared_once_one_is_known_to_be_possible():
    x, weight, tapes, calls = torch.ones(4, 32), torch.ones(32), Tapes((1, 2, 4)), []

    def compute(size):
        calls.append(size)
        return ops.rms_norm(x[:size], weight, 0.0)

    assert tapes.next_size is None
    tapes.run(2, lambda: compute(2))
    while (size := tapes.next_size) is not None:
        tapes.prepare(size, partial(compute, size))
    weight.fill_(3.0)
    assert [tapes.run(size, partial(compute, size)).unique().tolist() for size in (1, 2, 4)] == [[3.0]] * 3
    assert calls == [2, 1, 4]


def test_what_is_no_kernel_is_computed_each_time_and_no_size_is_offered_for_it():
    value, tapes = torch.zeros(1), Tapes((1,))
    assert tapes.size_for(1) == 1
    for number in range(3):
        value.fill_(number)
        assert tapes.run(1, partial(torch.add, value, 1)).item() == number + 1
        assert tapes.size_for(1) is None


def test_a_result_computed_once_lies_in_the_memory_of_the_tapes():
    tapes = Tapes((8,))
    result = tapes.once(lambda: ops.rms_norm(torch.ones(3, 32), torch.ones(32), 0.0))
    assert tapes._workspace.holds(result.numpy())

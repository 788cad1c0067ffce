import random
from collections.abc import Iterator, Sequence
from itertools import pairwise, product

import pytest

from engine.scheduling.policies.turbo import Cost, Turbo, cut
from engine.scheduling.policy import CPU_LIMITS
from tests.engine.scheduling.driver import scheduler

COSTS = {
    "steps are free": Turbo(Turbo.Parameters(cost_per_batch=0), CPU_LIMITS).cost,
    "default": Turbo(Turbo.Parameters(), CPU_LIMITS).cost,
    "steps are dear": Turbo(Turbo.Parameters(cost_per_batch=10_000), CPU_LIMITS).cost,
    "attention is dear": Turbo(Turbo.Parameters(cost_per_batch=30, cost_per_token_pair=0.1), CPU_LIMITS).cost,
}


def all_cuts(count: int, max_size: int) -> Iterator[list[tuple[int, int]]]:
    """Every way to cut [0, count) into batches of at most `max_size`."""
    for is_cut in product((False, True), repeat=max(count - 1, 0)):
        edges = [0, *(place for place, here in enumerate(is_cut, 1) if here), count]
        batches = list(pairwise(edges))
        if all(end - start <= max_size for start, end in batches):
            yield batches


def partitions(items: Sequence[int], max_size: int) -> Iterator[list[list[int]]]:
    """Every way to put `items` into batches of at most `max_size`, neighbours or not."""
    if not items:
        yield []
        return
    for batches in partitions(items[1:], max_size):
        yield [[items[0]], *batches]
        for place, batch in enumerate(batches):
            if len(batch) < max_size:
                yield [*batches[:place], [items[0], *batch], *batches[place + 1 :]]


def total(lengths: Sequence[int], batches: Sequence[tuple[int, int]], cost: Cost) -> float:
    return sum(cost(lengths[end - 1], end - start) for start, end in batches)


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("max_size", [1, 2, 3, 9])
def test_cuts_cost_no_more_than_any_other(cost: Cost, max_size: int):
    numbers = random.Random(max_size)
    for count in range(1, 10):
        lengths = sorted(numbers.choice((1, 5, 40, 300, 2000)) + numbers.randrange(20) for _ in range(count))
        batches = cut(lengths, max_size, cost)
        assert [place for start, end in batches for place in range(start, end)] == list(range(count))
        assert all(end - start <= max_size for start, end in batches)
        least = min(total(lengths, other, cost) for other in all_cuts(count, max_size))
        assert total(lengths, batches, cost) == pytest.approx(least)


@pytest.mark.parametrize("cost", COSTS.values(), ids=COSTS)
def test_batches_of_neighbours_in_length_cost_no_more_than_any_others(cost: Cost):
    numbers = random.Random(5)
    for max_size in (2, 3, 6):
        lengths = sorted(numbers.randrange(1, 500) for _ in range(6))
        least = min(
            sum(cost(max(batch), len(batch)) for batch in batches) for batches in partitions(lengths, max_size)
        )
        assert total(lengths, cut(lengths, max_size, cost), cost) == pytest.approx(least)


def test_cut_depends_on_what_a_step_costs():
    lengths = [10, 12, 100, 110]
    assert cut(lengths, 4, lambda longest, size: 0 + longest * size) == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert cut(lengths, 4, lambda longest, size: 50 + longest * size) == [(0, 2), (2, 4)]
    assert cut(lengths, 4, lambda longest, size: 500 + longest * size) == [(0, 4)]
    assert cut([], 4, lambda longest, size: 1) == []


def test_cost_model():
    policy = Turbo(Turbo.Parameters(cost_per_batch=7, cost_per_token_pair=0.5), CPU_LIMITS)
    assert policy.cost(10, 3) == 7 + 3 * (10 + 50)


def test_batch_of_the_head_of_the_queue_starts_with_those_like_it():
    engine = scheduler("turbo", batch_size=4, cost_per_batch=20)
    a, b, c, d = engine.add(30, max_tokens=1), engine.add(4, max_tokens=2), engine.add(29), engine.add(5, max_tokens=1)
    assert engine.step() == {a: 30, c: 29}
    assert engine.plan.padding == {c: 1}
    engine.finish(c)
    assert engine.step() == {b: 4, d: 5}
    assert engine.plan.padding == {b: 1}
    assert engine.step() == {b: 1}
    assert engine.plan.padding == {d: 1}


def test_those_who_came_meanwhile_are_cut_anew():
    engine = scheduler("turbo", batch_size=3, cost_per_batch=20)
    a, b = engine.add(30, max_tokens=2), engine.add(4, max_tokens=1)
    assert engine.step() == {a: 30}
    c = engine.add(5, max_tokens=1)
    assert engine.steps(2) == [{a: 1}, {b: 4, c: 5}]


def test_only_the_oldest_of_the_window_are_sorted():
    engine = scheduler("turbo", batch_size=3, window=2, cost_per_batch=1000)
    a, b = engine.add(4), engine.add(9)
    engine.add(4)
    assert engine.step() == {a: 4, b: 9}


def test_pool_too_small_for_the_batch_keeps_the_head():
    engine = scheduler("turbo", batch_size=3, cost_per_batch=1000, num_blocks=5)
    a, b, c = engine.add(8, max_tokens=4), engine.add(4, max_tokens=4), engine.add(5, max_tokens=3)
    assert engine.step() == {a: 8}                     # three blocks, and as many for b with its padding
    engine.run()
    assert next(iter(engine.done)) == a
    assert all(len(engine.output(name)) == length for name, length in ((a, 4), (b, 4), (c, 3)))

"""Choices of one prompt, in blocks of 4: the first computes it, the others begin behind its last full block."""

import pytest

from engine.request import FinishReason
from tests.engine.scheduling.driver import Driver, scheduler

PROMPT = list(range(100, 110))                          # two full blocks, and two tokens that each computes for itself


def add_choices(engine: Driver, count: int = 3, prompt=PROMPT, **options) -> list[str]:
    first, *others = [f"x{choice}" for choice in range(count)]
    engine.add(prompt, name=first, **options)
    for name in others:
        engine.add(prompt, name=name, first_choice_id=first, **options)
    return [first, *others]


def test_the_prompt_is_computed_once():
    engine = scheduler()
    a, b, c = add_choices(engine)
    assert engine.steps(3) == [{a: 10}, {a: 1, b: 2, c: 2}, {a: 1, b: 1, c: 1}]
    assert engine.block_table(a)[:2] == engine.block_table(b)[:2] == engine.block_table(c)[:2]
    assert engine.scheduler.prefix_cache_hits == 16


def test_a_prompt_in_chunks_is_waited_for_to_its_end():
    engine = scheduler(max_num_batched_tokens=6)
    a, b, c = add_choices(engine)
    assert engine.steps(3) == [{a: 6}, {a: 4}, {a: 1, b: 2, c: 2}]


def test_others_do_not_wait_with_them():
    engine = scheduler()
    a, *_ = add_choices(engine)
    d = engine.add(3)
    assert engine.step() == {a: 10, d: 3}


@pytest.mark.parametrize(
    ("prompt", "options"),
    [(PROMPT[:4], {}), (PROMPT, {"prompt_logprobs": 1})],
    ids=["shorter than a block and a token", "every position is asked for"],
)
def test_without_a_block_to_share_nobody_waits(prompt, options):
    engine = scheduler()
    names = add_choices(engine, prompt=prompt, **options)
    assert engine.step() == dict.fromkeys(names, len(prompt))


def test_without_a_prefix_cache_nobody_waits():
    engine = scheduler(prefix_caching=False)
    names = add_choices(engine)
    assert engine.step() == dict.fromkeys(names, 10)


def test_a_prompt_that_is_cached_already_is_not_waited_for():
    engine = scheduler()
    engine.add(PROMPT, 1)
    engine.run()
    first = engine.add(PROMPT, name="x0")
    engine.step()
    second = engine.add(PROMPT, name="x1", first_choice_id=first)
    assert engine.step() == {first: 1, second: 2}


@pytest.mark.parametrize("reason", [FinishReason.ABORT, FinishReason.ERROR])
def test_if_the_first_goes_the_others_compute_it(reason):
    engine = scheduler(max_num_batched_tokens=6)
    a, b, c = add_choices(engine)
    engine.step()
    engine.finish(a, reason)
    engine.scheduler.check_integrity()
    engine.run()
    assert engine.output(b) == engine.output(c)


def test_one_that_is_held_back_can_leave():
    engine = scheduler()
    a, b, c = add_choices(engine)
    assert engine.scheduler.num_waiting == 3
    engine.finish(b, FinishReason.ABORT)
    engine.scheduler.check_integrity()
    assert engine.steps(2) == [{a: 10}, {a: 1, c: 2}]
    engine.finish(a)
    engine.finish(c)
    assert (engine.scheduler.num_waiting, engine.scheduler.num_uncomputed_tokens) == (0, 0)

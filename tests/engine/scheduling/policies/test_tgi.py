import pytest

from engine.request import FinishReason
from engine.scheduling.policies.tgi import Tgi
from engine.scheduling.policy import GPU_LIMITS
from tests.engine.scheduling.driver import Driver, scheduler


def tgi(**options: object) -> Driver:
    return scheduler("tgi", **{"num_blocks": 1000, "waiting_served_ratio": 1.0, "max_waiting_tokens": 100, **options})


def test_defaults_are_those_of_the_server_and_the_device():
    policy = Tgi(Tgi.Parameters(), GPU_LIMITS)
    parameters = policy.parameters.model_dump()
    assert (parameters["waiting_served_ratio"], parameters["max_waiting_tokens"]) == (1.2, 20)
    assert policy.max_batch_prefill_tokens == GPU_LIMITS.max_num_batched_tokens
    assert policy.limits == GPU_LIMITS


# Turns


def test_decoding_pauses_exactly_at_the_ratio():
    engine = tgi(waiting_served_ratio=1.5)
    for _ in range(3):
        engine.add(4)
    assert engine.steps(2) == [{"a": 4, "b": 4, "c": 4}, {"a": 1, "b": 1, "c": 1}]
    for _ in range(3):
        engine.add(4)
    assert engine.step() == {"a": 1, "b": 1, "c": 1}   # three wait, ⌊3 × 1.5⌋ are needed
    engine.add(4)
    assert engine.step() == {"d": 4, "e": 4, "f": 4, "g": 4}
    assert engine.step() == dict.fromkeys("abcdefg", 1)


def test_decoding_pauses_for_anyone_after_enough_decode_steps():
    engine = tgi(waiting_served_ratio=10, max_waiting_tokens=3)
    a = engine.add(4)
    engine.step()
    b = engine.add(4)
    assert engine.steps(5) == [{a: 1}, {a: 1}, {a: 1}, {b: 4}, {a: 1, b: 1}]


def test_decode_step_follows_each_pause():
    engine = tgi()
    a = engine.add(4)
    engine.step()
    b = engine.add(4)
    assert engine.step() == {b: 4}
    for _ in range(3):
        engine.add(4)
    assert engine.steps(3) == [{a: 1, b: 1}, {"c": 4, "d": 4, "e": 4}, dict.fromkeys("abcde", 1)]


def test_fewer_than_needed_that_fit_pause_nobody():
    engine = tgi(max_batch_total_tokens=24)            # three of eight tokens each
    a, b = engine.add(4, max_tokens=4), engine.add(4, max_tokens=4)
    engine.steps(2)
    c, d = engine.add(4, max_tokens=4), engine.add(4, max_tokens=4)
    assert engine.step() == {a: 1, b: 1}               # two are needed and wait, but only one fits
    assert engine.steps(2) == [{a: 1, b: 1}, {c: 4, d: 4}]


# Budgets


def test_prompts_of_one_step_keep_their_budget():
    engine = tgi(max_batch_prefill_tokens=10, waiting_served_ratio=0)
    for _ in range(5):
        engine.add(4)
    assert engine.steps(4) == [{"a": 4, "b": 4}, {"c": 4, "d": 4}, dict.fromkeys("abcd", 1), {"e": 4}]


def test_prompt_beyond_the_budget_is_computed_alone():
    engine = tgi(max_batch_prefill_tokens=10)
    a, b = engine.add(25), engine.add(4)
    assert engine.steps(2) == [{a: 25}, {b: 4}]


def test_maximum_of_all_that_run_keeps_its_budget():
    engine = tgi(max_batch_total_tokens=25, waiting_served_ratio=0)
    a, b, c = (engine.add(4, max_tokens=6) for _ in range(3))
    assert engine.steps(2) == [{a: 4, b: 4}, {a: 1, b: 1}]
    engine.finish(a)
    assert engine.step() == {c: 4}


def test_request_beyond_the_total_budget_runs_alone():
    engine = tgi(max_batch_total_tokens=10, waiting_served_ratio=0)
    a, b = engine.add(8, max_tokens=4), engine.add(2, max_tokens=2)
    assert engine.steps(4) == [{a: 8}, {a: 1}, {a: 1}, {a: 1}]
    assert engine.step() == {b: 2}


def test_total_budget_defaults_to_the_pool():
    engine = tgi(num_blocks=6)
    a, b, c = (engine.add(4, max_tokens=8) for _ in range(3))
    assert engine.step() == {a: 4, b: 4}
    assert engine.waiting == [c]


def test_pool_bounds_what_starts_whatever_the_budget():
    engine = tgi(num_blocks=5, max_batch_total_tokens=1000)
    a, b = engine.add(5, max_tokens=6), engine.add(5, max_tokens=6)
    assert engine.step() == {a: 5}                     # three blocks each
    engine.run()
    assert engine.scheduler.num_preemptions == 0 and list(engine.done) == [a, b]


def test_sequences_of_the_device_bound_the_batch():
    engine = tgi()
    for _ in range(10):
        engine.add(4)
    assert len(engine.step()) == 8


@pytest.mark.parametrize(("reserve", "num_running"), [("request", 4), ("max_model_len", 2)])
def test_promise_of_a_request_or_of_the_context(reserve: str, num_running: int):
    engine = tgi(num_blocks=10, max_model_len=20, reserve=reserve)
    for _ in range(4):
        engine.add(4, max_tokens=4)
    assert len(engine.step()) == num_running


# Ends


def test_promise_ends_with_an_abort():
    engine = tgi(num_blocks=4)
    a, b = engine.add(4, max_tokens=12), engine.add(4, max_tokens=12)
    assert engine.steps(2) == [{a: 4}, {a: 1}]
    engine.finish(a, FinishReason.ABORT)
    assert engine.step() == {b: 4}


def test_prompts_and_decodes_never_share_a_step():
    engine = tgi(num_blocks=20, waiting_served_ratio=0.3, max_waiting_tokens=2)
    for number in range(20):
        engine.add(3 + number % 5, max_tokens=1 + number % 7)
        engine.step()
    engine.run()
    assert len(engine.done) == 20
    for plan in engine.runner.plans:
        starts = {start == 0 for start in plan.start.values()}
        assert len(starts) == 1

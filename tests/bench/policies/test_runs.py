import pytest

from bench.policies.runs import StepCounter
from engine.request import Request
from engine.scheduling.plan import StepPlan
from tests.helpers import generation


def plan(scheduled, start, *, new=(), **fields):
    return StepPlan(scheduled, start, {}, new={g.request_id: (g, g.prompt_token_ids) for g in new}, **fields)


def counter(*used_blocks):
    found = StepCounter()
    blocks = iter(used_blocks)
    found.watch(lambda: next(blocks), num_blocks=10, block_size=4)
    return found


def test_rows_by_what_they_were_for():
    counted = counter(1, 2, 2)
    a, b = generation("a", [1] * 4), generation("b", [2] * 6)
    counted.on_step(plan({"a": 4, "b": 6}, {"a": 0, "b": 0}, new=[a, b], padding={"a": 2}), {"a": 1, "b": 1}, 0, 1)
    counted.on_step(plan({"a": 1, "b": 1}, {"a": 4, "b": 6}), {"a": 1, "b": 1}, 1, 2)
    counted.on_finish(Request(a, 0.0), 2.0)
    counted.on_step(plan({"b": 1}, {"b": 7}, padding={"a": 1}), {"b": 1}, 2, 3)
    figures = counted.figures()
    assert (figures.prefill_rows, figures.decode_rows, figures.idle_rows) == (10, 3, 3)
    assert figures.num_steps == 3
    assert figures.discarded_share == pytest.approx(0.5)


def test_recomputed_tokens_are_prefill():
    counted = counter(1, 1)
    counted.on_step(plan({"a": 4}, {"a": 0}, new=[generation("a", [1] * 4)]), {"a": 1}, 0, 1)
    counted.on_step(plan({"a": 5}, {"a": 0}, preempted=("a",)), {"a": 1}, 1, 2)
    figures = counted.figures()
    assert (figures.prefill_rows, figures.decode_rows, figures.num_preemptions) == (9, 0, 1)


def test_cache_and_batch_are_means_over_time():
    """One second with 2 of 10 blocks held and 4 tokens in 8 slots, three seconds with 4 blocks and 5 + 6 in 16."""
    counted = counter(2, 4)
    a, b = generation("a", [1] * 4), generation("b", [2] * 6)
    counted.on_step(plan({"a": 4}, {"a": 0}, new=[a]), {"a": 1}, 0, 1)
    counted.on_step(plan({"b": 6}, {"b": 0}, new=[b]), {"b": 1}, 1, 4)
    figures = counted.figures()
    assert figures.kv_usage == pytest.approx((2 + 3 * 4) / 4 / 10)
    assert figures.kv_waste == pytest.approx(1 - (4 + 3 * 10) / (8 + 3 * 16))
    assert figures.mean_running == pytest.approx((1 + 3 * 2) / 4)
    assert figures.mean_batch == pytest.approx(1)
    assert figures.paused_share == pytest.approx(1 - 4 / 7)


def test_what_was_computed_for_a_request_that_ended_meanwhile_is_idle():
    counted = counter(1, 1)
    a = generation("a", [1] * 4)
    counted.on_step(plan({"a": 4}, {"a": 0}, new=[a]), {"a": 1}, 0.0, 1.0)
    counted.on_finish(Request(a, 0.0), 1.0)
    counted.on_step(plan({"a": 1}, {"a": 4}), {}, 0.5, 1.5)          # it overlapped the step before
    figures = counted.figures()
    assert (figures.prefill_rows, figures.decode_rows, figures.idle_rows) == (4, 0, 1)
    assert figures.mean_running == pytest.approx(1.0 / 1.5)


def test_a_long_run_keeps_a_short_curve():
    counted = StepCounter()
    a = generation("a", [1])
    counted.on_step(plan({"a": 1}, {"a": 0}, new=[a]), {"a": 1}, 0, 1)
    for i in range(1, 2000):
        counted.on_step(plan({"a": 1}, {"a": i}), {"a": 1}, i, i + 1)
    occupancy = counted.figures().occupancy
    assert len(occupancy) == 250
    assert sum(8 * stretch.decode for stretch in occupancy) == pytest.approx(1999, abs=1)
    assert occupancy[1].first_step == 8

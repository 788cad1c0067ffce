import pytest

from engine.request import FinishReason
from engine.scheduling.policies.vllm_v0 import VllmV0
from engine.scheduling.policy import CPU_LIMITS, Limits
from tests.engine.scheduling.driver import Driver, scheduler


def vllm(**options: object) -> Driver:
    return scheduler("vllm_v0", **{"watermark": 0.0, **options})


def test_defaults_are_those_of_2023():
    policy = VllmV0(VllmV0.Parameters(), CPU_LIMITS)
    assert (policy.limits, policy.watermark, policy.default_block_size) == (Limits(2560, 256), 0.01, 16)


def test_prompts_and_decodes_never_share_a_step():
    engine = vllm()
    a = engine.add(5)
    assert engine.steps(2) == [{a: 5}, {a: 1}]
    b, c = engine.add(70), engine.add(1)
    assert engine.steps(3) == [{b: 70, c: 1}, {a: 1, b: 1, c: 1}, {a: 1, b: 1, c: 1}]


def test_prompts_are_whole_and_share_a_step_within_the_budget():
    engine = vllm(max_num_batched_tokens=10)
    a, b, c = engine.add(6), engine.add(4), engine.add(6)
    assert engine.steps(3) == [{a: 6, b: 4}, {c: 6}, {a: 1, b: 1, c: 1}]


def test_prompt_that_does_not_fit_a_step_any_more_stops_those_behind_it():
    engine = vllm(max_num_batched_tokens=10)
    a, b, c = engine.add(6), engine.add(5), engine.add(4)
    assert engine.steps(2) == [{a: 6}, {b: 5, c: 4}]


def test_prompt_beyond_the_budget_is_computed_over_several_prompt_steps():
    engine = vllm(max_num_batched_tokens=10)
    a = engine.add(3)
    engine.step()
    b, c = engine.add(25), engine.add(5)
    assert engine.steps(4) == [{b: 10}, {b: 10}, {b: 5, c: 5}, {a: 1, b: 1, c: 1}]


def test_cached_prefix_costs_no_budget():
    engine = vllm(max_num_batched_tokens=10)
    a = engine.add(range(10), max_tokens=1)
    engine.step()
    b, c = engine.add(range(12)), engine.add(6)
    assert a in engine.done
    assert engine.step() == {b: 4, c: 6}


def test_seats_are_limited():
    engine = vllm(max_num_seqs=2)
    a, b, c = engine.add(4, max_tokens=2), engine.add(4, max_tokens=3), engine.add(4)
    assert engine.steps(4) == [{a: 4, b: 4}, {a: 1, b: 1}, {c: 4}, {b: 1, c: 1}]


def test_no_more_run_than_a_step_holds():
    engine = vllm(max_num_batched_tokens=2, max_num_seqs=64)
    a, b, c = (engine.add(1, max_tokens=2) for _ in range(3))
    assert engine.steps(3) == [{a: 1, b: 1}, {a: 1, b: 1}, {c: 1}]


@pytest.mark.parametrize(("watermark", "first"), [(0.0, ["a", "b"]), (0.25, ["a"])])
def test_watermark_keeps_blocks_for_the_running(watermark: float, first: list[str]):
    engine = vllm(num_blocks=4, watermark=watermark)
    engine.add(8), engine.add(8)
    assert list(engine.step()) == first


def test_watermark_does_not_hold_back_a_lone_request():
    engine = vllm(num_blocks=4, watermark=0.5)
    a = engine.add(13)
    assert engine.step() == {a: 13}


def test_newest_is_recomputed_and_comes_back_ahead_of_the_waiting():
    engine = vllm(num_blocks=4)
    a, b = engine.add(7, max_tokens=4), engine.add(8, max_tokens=3)
    engine.step()
    c = engine.add(1)
    assert engine.step() == {a: 1}                     # b needs a third block and loses its two
    assert engine.waiting == [b, c]
    assert engine.steps(2) == [{a: 1}, {a: 1}]         # a holds three now
    assert engine.step() == {b: 5, c: 1}               # b's first block is found again


def test_abort_of_the_blocked_head_lets_the_next_one_start():
    engine = vllm(num_blocks=4)
    a, b, c = engine.add(8), engine.add(12), engine.add(4)
    assert engine.step() == {a: 8}
    engine.finish(b, FinishReason.ABORT)
    assert engine.step() == {c: 4}


def test_running_request_gets_a_token_between_bursts_of_prompts():
    engine = vllm(max_num_seqs=3, max_num_batched_tokens=4)
    a = engine.add(4, max_tokens=10)
    engine.step()
    for _ in range(20):
        engine.add(4, max_tokens=2)
    steps = engine.steps(12)
    pauses = "".join("d" if a in step else "p" for step in steps)
    assert pauses == "ppdppdppdppd"                    # two seats to fill, then a decode step

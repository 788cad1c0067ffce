import pytest

from engine.request import FinishReason
from engine.scheduling.policies.sglang import LPM_MAX_WAITING, Sglang
from engine.scheduling.policy import CPU_LIMITS
from tests.engine.scheduling.driver import Driver, scheduler


def ratio(engine: Driver) -> float:
    policy = engine.scheduler.policy
    assert isinstance(policy, Sglang)
    return policy.new_token_ratio


def test_defaults_are_those_of_sglang():
    policy = Sglang(Sglang.Parameters(), CPU_LIMITS)
    assert (policy.chunked_prefill_size, policy.clip, policy.schedule_policy) == (8192, 4096, "lpm")
    assert (policy.new_token_ratio, policy.min_ratio) == (0.7, 0.098)


# Admission


@pytest.mark.parametrize(("num_blocks", "num_running"), [(17, 1), (18, 2)])
def test_running_are_counted_at_the_ratio_and_a_newcomer_whole(num_blocks: int, num_running: int):
    # a has 4 blocks and 40 tokens to come, of which half, 20, are expected; b needs 4 blocks and 20 tokens.
    engine = scheduler("sglang", num_blocks=num_blocks, init_new_token_ratio=0.5, min_new_token_ratio=0.5)
    a = engine.add(13, max_tokens=41)
    assert engine.step() == {a: 13}
    engine.add(16, max_tokens=20)
    engine.step()
    assert len(engine.running) == num_running


def test_remaining_output_is_clipped():
    engine = scheduler("sglang", num_blocks=8, clip_max_new_tokens=8, init_new_token_ratio=1.0)
    engine.add(4, max_tokens=1000), engine.add(4, max_tokens=1000), engine.add(4, max_tokens=1000)
    assert list(engine.step()) == ["a", "b"]           # 2 blocks and 4 expected; a third would make it 3 and 6


@pytest.mark.parametrize(("lowest", "is_admitted"), [(0.2, True), (0.8, False)])
def test_ratio_falls_with_decode_steps_and_admits_more(lowest: float, is_admitted: bool):
    engine = scheduler(
        "sglang", num_blocks=30, init_new_token_ratio=0.8, min_new_token_ratio=lowest, new_token_ratio_decay_steps=6
    )
    engine.add(4, max_tokens=100)
    engine.step()
    assert ratio(engine) == 0.8                        # a step of prompts does not count
    ratios = []
    for _ in range(8):
        engine.step()
        ratios.append(round(ratio(engine), 6))
    assert ratios == ([0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.2, 0.2] if is_admitted else [0.8] * 8)
    b = engine.add(4, max_tokens=80)                   # 3 + 1 blocks held, 80 tokens and the ratio of 91 expected
    assert (b in engine.step()) is is_admitted


def test_ratio_starts_anew_when_nothing_runs():
    engine = scheduler("sglang", new_token_ratio_decay_steps=10)
    engine.add(4, max_tokens=4)
    engine.run()
    assert ratio(engine) < 0.6
    engine.add(4, max_tokens=1)
    engine.step()
    assert ratio(engine) == 0.7


def test_alone_a_request_may_have_all_there_is():
    engine = scheduler("sglang", num_blocks=4)
    a = engine.add(13, max_tokens=1000)
    assert engine.step() == {a: 13}


def test_requests_are_limited():
    engine = scheduler("sglang", max_running_requests=1)
    a, b = engine.add(3, max_tokens=2), engine.add(3, max_tokens=2)
    assert engine.steps(4) == [{a: 3}, {a: 1}, {b: 3}, {b: 1}]


# Order


def cached(engine: Driver, prefix: range) -> None:
    engine.add(prefix, max_tokens=1, name="teacher")
    engine.step()


def test_longest_cached_prefix_goes_first():
    engine = scheduler("sglang", max_running_requests=1)
    cached(engine, range(13))
    a, b, c = engine.add(5, max_tokens=1), engine.add(range(6), max_tokens=1), engine.add(range(10), max_tokens=1)
    assert engine.steps(3) == [{c: 2}, {b: 2}, {a: 5}]


def test_fcfs_takes_the_oldest_first():
    engine = scheduler("sglang", max_running_requests=1, schedule_policy="fcfs")
    cached(engine, range(13))
    a, b = engine.add(5, max_tokens=1), engine.add(range(10), max_tokens=1)
    assert engine.steps(2) == [{a: 5}, {b: 2}]


def test_matching_is_given_up_in_a_long_queue():
    engine = scheduler("sglang", max_running_requests=1)
    cached(engine, range(13))
    for number in range(LPM_MAX_WAITING):
        engine.add(5, max_tokens=1, name=str(number))
    engine.add(range(10), max_tokens=1, name="last")
    assert engine.steps(2) == [{"0": 5}, {"last": 2}]  # then LPM_MAX_WAITING wait


def test_priority_goes_before_the_prefix():
    engine = scheduler("sglang", max_running_requests=1)
    cached(engine, range(13))
    engine.add(range(10), max_tokens=1)
    urgent = engine.add(5, max_tokens=1, priority=-1)
    assert engine.step() == {urgent: 5}


# Composition


def test_prompts_go_first_in_steps_of_their_own():
    engine = scheduler("sglang", chunked_prefill_size=8)
    a = engine.add(4, max_tokens=9)
    assert engine.steps(2) == [{a: 4}, {a: 1}]
    b, c = engine.add(11, max_tokens=3), engine.add(3, max_tokens=3)
    assert engine.steps(3) == [{b: 8}, {b: 3, c: 3}, {a: 1, b: 1, c: 1}]


# Shortage


def optimistic(num_blocks: int, **options: object) -> Driver:
    return scheduler(
        "sglang",
        num_blocks=num_blocks,
        init_new_token_ratio=0.0,
        min_new_token_ratio=0.0,
        clip_max_new_tokens=1,
        prefix_caching=False,
        **options,
    )


def test_least_output_is_retracted_and_the_ratio_raised():
    engine = optimistic(6)
    a = engine.add(6, max_tokens=40)
    engine.steps(2)
    b = engine.add(11, max_tokens=40, priority=-1)     # goes first, and is not the newest in the queue's order
    assert engine.steps(2) == [{b: 11}, {b: 1, a: 1}]
    assert ratio(engine) == 0
    assert engine.step() == {a: 1}                     # b takes the last block; a needs one, and b has less output
    assert (engine.waiting, engine.plan.preempted) == ([b], (b,))
    assert ratio(engine) == pytest.approx((3 + 20) / (40 + 1))


def test_longest_prompt_is_retracted_among_equal_outputs():
    engine = optimistic(6)
    a, b = engine.add(11, max_tokens=9), engine.add(6, max_tokens=9)
    assert engine.steps(3) == [{a: 11, b: 6}, {a: 1, b: 1}, {a: 1, b: 1}]
    assert engine.step() == {b: 1}
    assert engine.waiting == [a]


def test_newest_is_retracted_among_equals():
    engine = optimistic(5)
    a, b = engine.add(7, max_tokens=9), engine.add(7, max_tokens=9)
    assert engine.steps(3) == [{a: 7, b: 7}, {a: 1, b: 1}, {a: 1}]
    assert engine.waiting == [b]


def test_everyone_ends_however_often_retracted():
    engine = optimistic(6)
    names = [engine.add(6, max_tokens=10) for _ in range(7)]
    engine.run()
    assert sorted(engine.done) == names
    assert engine.scheduler.num_preemptions > 0


def test_abort_of_a_retracted_request():
    engine = optimistic(5)
    a, b = engine.add(8, max_tokens=30), engine.add(8, max_tokens=30)
    while engine.scheduler.num_preemptions == 0:
        assert engine.step()
    [waiting] = engine.waiting
    engine.finish(waiting, FinishReason.ABORT)
    engine.run()
    assert len(engine.output(a if waiting == b else b)) == 13

import pytest
from pydantic import ValidationError

from engine.request import FinishReason
from engine.scheduling.policies.chunked import Chunked
from engine.scheduling.policy import CPU_LIMITS, GPU_LIMITS
from tests.engine.scheduling.driver import scheduler


def test_budgets_left_null_are_those_of_the_device():
    for limits, expected in ((CPU_LIMITS, (512, 64)), (GPU_LIMITS, (8192, 256))):
        policy = Chunked(Chunked.Parameters(), limits)
        assert (policy.max_num_batched_tokens, policy.max_num_seqs) == expected
    policy = Chunked(Chunked.Parameters(max_num_batched_tokens=7, max_num_seqs=3), CPU_LIMITS)
    assert (policy.max_num_batched_tokens, policy.max_num_seqs) == (7, 3)


def test_unknown_and_impossible_parameters_are_refused():
    for wrong in ({"max_num_batched_tokens": 0}, {"max_num_seqs": 0}, {"watermark": 1.0}, {"batch_size": 4}):
        with pytest.raises(ValidationError):
            Chunked.Parameters.model_validate(wrong)


# Composition


@pytest.mark.parametrize(
    ("budget", "chunks"), [(1, [1] * 10), (3, [3, 3, 3, 1]), (7, [7, 3]), (64, [10])]
)
def test_prompt_is_cut_to_the_budget(budget: int, chunks: list[int]):
    engine = scheduler(max_num_batched_tokens=budget)
    a = engine.add(10)
    assert [step[a] for step in engine.steps(len(chunks) + 2)] == [*chunks, 1, 1]


def test_running_come_first_and_prompts_fill_the_budget():
    engine = scheduler(max_num_batched_tokens=10)
    a = engine.add(4)
    engine.step()
    b, c = engine.add(12), engine.add(5)
    assert engine.steps(4) == [{a: 1, b: 9}, {a: 1, b: 3, c: 5}, {a: 1, b: 1, c: 1}, {a: 1, b: 1, c: 1}]


def test_prompt_chunk_leaves_a_token_for_each_running_request_behind_it():
    engine = scheduler(max_num_batched_tokens=8)
    a, b = engine.add(3), engine.add(3)
    engine.step()
    urgent = engine.add(20, priority=-1)
    assert engine.steps(2) == [{urgent: 6, a: 1, b: 1}, {urgent: 6, a: 1, b: 1}]


def test_more_running_than_budget_serves_the_oldest():
    engine = scheduler(max_num_batched_tokens=2)
    a, b, c = (engine.add(1, max_tokens=2) for _ in range(3))
    assert engine.steps(4) == [{a: 1, b: 1}, {a: 1, b: 1}, {c: 1}, {c: 1}]


def test_long_prompt_takes_no_more_than_its_threshold():
    engine = scheduler(max_num_batched_tokens=10, long_prefill_token_threshold=4)
    a, b = engine.add(9), engine.add(9)
    assert engine.steps(3) == [{a: 4, b: 4}, {a: 4, b: 4}, {a: 1, b: 1}]


def test_cached_prefix_costs_no_budget():
    engine = scheduler(max_num_batched_tokens=10)
    a = engine.add(range(10), max_tokens=2)
    engine.step()
    b, c = engine.add(range(12)), engine.add(5)
    assert engine.step() == {a: 1, b: 4, c: 5}
    assert engine.block_table(b) == (0, 1, 3)


@pytest.mark.parametrize("length", [3, 4, 5, 8, 9, 64])
def test_prompt_wholly_in_the_cache_computes_its_last_block(length: int):
    engine = scheduler()
    engine.add(range(length), max_tokens=1)
    engine.step()
    b = engine.add(range(length))
    assert engine.step() == {b: (length - 1) % 4 + 1}
    assert engine.output(b) == engine.output("a")


# Admission


def test_seats_are_limited():
    engine = scheduler(max_num_seqs=2)
    a, b, c = engine.add(4, max_tokens=2), engine.add(4), engine.add(4)
    assert engine.steps(3) == [{a: 4, b: 4}, {a: 1, b: 1}, {b: 1, c: 4}]


def test_watermark_keeps_one_block_for_the_running():
    engine = scheduler(num_blocks=4, watermark=0.25)
    a, b, c = engine.add(8), engine.add(4), engine.add(4)
    assert engine.step() == {a: 8, b: 4}              # c would leave no block free
    assert (engine.block_table(a), engine.block_table(b), engine.waiting) == ((0, 1), (2,), [c])


def test_watermark_does_not_hold_back_a_lone_request():
    engine = scheduler(num_blocks=4, watermark=0.5)
    a = engine.add(13)
    assert engine.step() == {a: 13}


def test_request_starts_only_if_its_whole_sequence_fits():
    engine = scheduler(num_blocks=4, max_num_batched_tokens=12)
    a, b = engine.add(8, max_tokens=2), engine.add(12)
    assert engine.steps(3) == [{a: 8}, {a: 1}, {b: 12}]


def test_nobody_overtakes_a_request_that_does_not_fit():
    engine = scheduler(num_blocks=4)
    a, b, c = engine.add(8, max_tokens=3), engine.add(12), engine.add(4)
    assert engine.steps(4) == [{a: 8}, {a: 1}, {a: 1}, {b: 12, c: 4}]


def test_abort_of_the_blocked_head_lets_the_next_one_start():
    engine = scheduler(num_blocks=4)
    a, b, c = engine.add(8), engine.add(12), engine.add(4)
    engine.step()
    engine.finish(b, FinishReason.ABORT)
    assert engine.step() == {a: 1, c: 4}


# Shortage


def test_newest_is_preempted_and_the_older_takes_its_block():
    engine = scheduler(num_blocks=3)
    a, b, c = engine.add(4), engine.add(4), engine.add(4)
    assert engine.step() == {a: 4, b: 4, c: 4}
    assert engine.step() == {a: 1}                    # a takes c's block, b has none to take and gives up its own
    assert (engine.block_table(a), engine.running, engine.waiting) == ((0, 2), [a], [b, c])


def test_request_that_lacks_a_block_may_be_the_newest_itself():
    engine = scheduler(num_blocks=3)
    a, b = engine.add(5), engine.add(4)
    assert engine.steps(2) == [{a: 5, b: 4}, {a: 1}]
    assert engine.waiting == [b]


def test_preempted_requests_come_back_in_order_of_arrival_before_newer_ones():
    engine = scheduler(num_blocks=3)
    a, b, c = engine.add(4, max_tokens=3), engine.add(4, max_tokens=2), engine.add(4, max_tokens=2)
    d = engine.add(4, max_tokens=1)
    assert engine.steps(2) == [{a: 4, b: 4, c: 4}, {a: 1}]    # d does not get the block now free
    assert engine.waiting == [b, c, d]
    assert engine.steps(3) == [{a: 1}, {b: 1}, {c: 5, d: 4}]  # b's block is found again; a has taken c's


def test_lowest_priority_is_preempted_though_it_is_older():
    engine = scheduler(num_blocks=3)
    low = engine.add(4, priority=1)
    a, b = engine.add(4), engine.add(4)
    engine.step()
    assert engine.step() == {a: 1}
    assert engine.running == [a]
    assert engine.waiting == [b, low]


def test_equals_with_a_pool_for_two_do_not_evict_each_other_in_turn():
    engine = scheduler(num_blocks=20)
    names = [engine.add(20, max_tokens=20) for _ in range(4)]
    engine.run()
    assert all(len(engine.output(name)) == 20 for name in names)
    assert engine.scheduler.num_preemptions <= 4


# Priorities


def test_urgent_request_takes_the_seat_of_the_lowest_priority():
    engine = scheduler(max_num_seqs=2)
    a, low = engine.add(4), engine.add(4, priority=1)
    engine.step()
    urgent = engine.add(4, priority=-1)
    assert engine.step() == {urgent: 4, a: 1}
    assert (engine.running, engine.waiting) == ([urgent, a], [low])


def test_urgent_request_takes_blocks_of_lower_priorities_only_as_needed():
    engine = scheduler(num_blocks=6)
    a, b = engine.add(8, priority=1), engine.add(8, priority=1)
    engine.step()
    urgent = engine.add(12)
    assert engine.step() == {urgent: 12, a: 1}
    assert engine.waiting == [b]


def test_equal_priority_takes_nothing_to_start():
    engine = scheduler(max_num_seqs=1)
    a = engine.add(4, max_tokens=3)
    engine.step()
    b = engine.add(4)
    assert engine.steps(3) == [{a: 1}, {a: 1}, {b: 4}]
    assert engine.scheduler.num_preemptions == 0


def test_urgent_prompt_goes_before_the_running_of_lower_priority():
    engine = scheduler(max_num_batched_tokens=6)
    low = engine.add(20, priority=1)
    engine.step()
    urgent = engine.add(8)
    assert engine.steps(3) == [{urgent: 5, low: 1}, {urgent: 3, low: 3}, {urgent: 1, low: 5}]


def test_low_priority_ends_after_a_burst_of_urgent_requests():
    engine = scheduler(max_num_seqs=1)
    low = engine.add(4, max_tokens=3, priority=1)
    engine.step()
    urgent = [engine.add(4, max_tokens=2) for _ in range(10)]
    engine.run()
    assert list(engine.done) == [*urgent, low]
    assert engine.scheduler.num_preemptions == 1


def test_waiting_lower_priority_does_not_overtake_a_blocked_urgent_one():
    engine = scheduler(num_blocks=4)
    engine.add(9)
    engine.step()
    engine.add(8)
    engine.add(4, priority=1)
    assert list(engine.step()) == ["a"]

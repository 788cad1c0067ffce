"""StepBuilder through small policies of the kinds that must fit it, beside the default one."""

from collections.abc import Callable
from itertools import islice

import pytest

from engine.request import FinishReason
from engine.scheduling.policy import Policy
from engine.scheduling.step_builder import StepBuilder
from tests.engine.scheduling.driver import Driver, scheduler


class Orca(Policy):
    """Whole prompts beside decodes; everything a request can need is reserved at once."""

    def plan(self, step: StepBuilder) -> None:
        for request in step.running:
            step.schedule(request, 1)
        for request in step.waiting:
            if len(step) >= self.limits.max_num_seqs:
                break
            if not step.reserve(request, request.num_prompt_tokens + request.max_tokens):
                break
            step.schedule(request, request.num_tokens)


class Static(Policy):
    """A batch of two, padded to its longest prompt, that ends when its longest member ends."""

    keeps_seats = True

    def plan(self, step: StepBuilder) -> None:
        for request in step.running:
            step.schedule(request, 1)
        for request in step.seats:
            step.pad(request, 1)
        if step.num_running == 0:
            batch = list(islice(step.waiting, 2))
            longest = max((request.num_tokens for request in batch), default=0)
            for request in batch:
                step.reserve(request, longest + request.max_tokens)
                step.schedule(request, longest)
                if request.num_tokens < longest:
                    step.pad(request, longest - request.num_tokens)


def scripted(*plans: Callable[[StepBuilder], object], **options: int) -> Driver:
    """A scheduler whose policy does `plans`, one a step."""
    pending = iter(plans)

    class Scripted(Policy):
        def plan(self, step: StepBuilder) -> None:
            next(pending)(step)

    return scheduler(Scripted, **options)


def admit_all(step: StepBuilder) -> None:
    for request in step.waiting:
        step.schedule(request, 1000)


def test_reservation_holds_the_whole_maximum_from_the_start():
    engine = scheduler(Orca, num_blocks=6)
    a, b = engine.add(7, max_tokens=5), engine.add(7, max_tokens=6)
    assert engine.step() == {a: 7}
    assert (engine.block_table(a), engine.waiting) == ((0, 1, 2), [b])
    assert engine.steps(4) == [{a: 1}] * 4
    assert engine.step() == {b: 7}


def test_reservation_is_cut_to_what_can_ever_be_needed():
    engine = scheduler(Orca, num_blocks=6, max_model_len=10)
    a = engine.add(7, max_tokens=1000)
    assert engine.step() == {a: 7}
    assert engine.block_table(a) == (0, 1, 2)
    engine = scheduler(Orca, num_blocks=6)
    a = engine.add(7, max_tokens=1000)
    engine.run()
    assert len(engine.output(a)) == 18


def test_reservation_of_a_running_request_extends_what_it_holds():
    def extend(step: StepBuilder) -> None:
        admit_all(step)
        for request in step.running:
            assert not step.reserve(request, 17)
            assert step.reserve(request, 16)
            step.schedule(request, 1)

    engine = scripted(admit_all, extend, num_blocks=5)
    a = engine.add(4)
    engine.step()
    b = engine.add(4)
    assert engine.step() == {b: 4, a: 1}
    assert len(engine.block_table(a)) == 4


def test_padded_batch_keeps_seats_to_its_end():
    engine = scheduler(Static, num_blocks=20)
    a, b, c = engine.add(3, max_tokens=2), engine.add(8, max_tokens=4), engine.add(4)
    assert engine.step() == {a: 3, b: 8}
    assert engine.plan.padding == {a: 5}
    assert engine.step() == {a: 1, b: 1}
    assert engine.step() == {b: 1}
    assert (engine.plan.padding, engine.plan.block_tables[a], engine.plan.start[a]) == ({a: 1}, (0, 1, 2), 4)
    assert engine.kv.num_used_blocks == 6
    assert engine.step() == {b: 1}
    assert engine.kv.num_used_blocks == 0
    assert engine.step() == {c: 4}
    assert engine.plan.finished == (b, a)


def test_seat_of_an_aborted_member_is_given_up_at_once():
    engine = scheduler(Static)
    a, b = engine.add(3, max_tokens=10), engine.add(3, max_tokens=10)
    engine.step()
    engine.finish(a, FinishReason.ABORT)
    engine.scheduler.check_integrity()
    assert engine.step() == {b: 1}
    assert (engine.plan.padding, engine.plan.finished) == ({}, (a,))


def test_seats_are_given_up_when_the_last_member_is_aborted():
    engine = scheduler(Static)
    a, b = engine.add(3, max_tokens=1), engine.add(3, max_tokens=10)
    engine.step()
    assert engine.kv.num_used_blocks > 0 and list(engine.done) == [a]
    engine.finish(b, FinishReason.ABORT)
    engine.scheduler.check_integrity()
    assert engine.kv.num_used_blocks == 0


def test_schedule_takes_no_more_than_there_is_to_compute():
    engine = scripted(admit_all, admit_all)
    engine.add(range(6), max_tokens=1)
    assert engine.step() == {"a": 6}
    b = engine.add(range(6))
    assert engine.step() == {b: 2}                    # four tokens are cached


def test_scheduling_twice_or_nothing_is_refused():
    def twice(step: StepBuilder) -> None:
        [request] = step.waiting
        with pytest.raises(ValueError, match="for 0 tokens"):
            step.schedule(request, 0)
        step.schedule(request, 2)
        with pytest.raises(ValueError, match="twice"):
            step.schedule(request, 2)

    engine = scripted(twice)
    engine.add(6)
    assert engine.step() == {"a": 2}


def test_schedule_that_lacks_blocks_changes_nothing():
    def overfill(step: StepBuilder) -> None:
        first, second = step.waiting
        assert step.schedule(first, 5)
        assert not step.schedule(second, 5)
        assert (len(step), step.num_tokens, step.num_running, step.num_waiting) == (1, 5, 1, 1)
        assert step.schedule(second, 4)

    engine = scripted(overfill, num_blocks=3)
    a, b = engine.add(6), engine.add(6)
    assert engine.step() == {a: 5, b: 4}


def test_iterators_leave_out_who_changed_queue_in_this_step():
    seen: list[list[str]] = []

    def shuffle(step: StepBuilder) -> None:
        first, *_ = step.running
        newest = step.newest
        assert newest is not None
        step.preempt(newest)
        step.schedule(next(step.waiting), 1)
        seen.append([request.request_id for request in step.running])
        seen.append([request.request_id for request in step.waiting])
        seen.append([request.request_id for request in step.by_priority()])
        assert step.newest is first

    engine = scripted(admit_all, shuffle)
    a, b = engine.add(4), engine.add(4)
    engine.step()
    c, d = engine.add(4), engine.add(4)
    assert engine.step() == {c: 1}
    assert seen == [[a], [d], [a, d]]
    assert (engine.running, engine.waiting) == ([a, c], [b, d])


def test_by_priority_puts_running_first_among_equals():
    seen: list[str] = []
    engine = scripted(admit_all, lambda step: seen.extend(request.request_id for request in step.by_priority()))
    engine.add(4, name="running 0"), engine.add(4, name="running 2", priority=2)
    engine.step()
    for priority in (3, 2, 1, 0):
        engine.add(4, name=f"waiting {priority}", priority=priority)
    engine.step()
    assert seen == ["running 0", "waiting 0", "waiting 1", "running 2", "waiting 2", "waiting 3"]


def test_by_priority_leaves_out_who_is_preempted_on_the_way():
    seen: list[str] = []

    def preempt_all(step: StepBuilder) -> None:
        for request in step.by_priority():
            seen.append(request.request_id)
            while step.newest is not None:
                step.preempt(step.newest)

    engine = scripted(admit_all, preempt_all)
    engine.add(4, priority=1), engine.add(4, priority=1)
    engine.step()
    urgent = engine.add(4)
    engine.step()
    assert seen == [urgent]


def test_preempting_takes_back_what_was_scheduled_in_this_step():
    def regret(step: StepBuilder) -> None:
        for request in step.running:
            step.schedule(request, 1)
        assert step.newest is not None
        step.pad(step.newest, 3)
        step.preempt(step.newest)
        assert (step.num_tokens, len(step), step.num_running) == (1, 1, 1)

    engine = scripted(admit_all, regret)
    a, b = engine.add(4), engine.add(4)
    engine.step()
    assert engine.step() == {a: 1}
    plan = engine.plan
    assert (plan.sampling, plan.preempted, plan.padding, list(plan.block_tables)) == ((a,), (b,), {}, [a])


def test_request_admitted_and_preempted_in_one_step_is_unknown_to_the_runner():
    def hesitate(step: StepBuilder) -> None:
        first, second = step.waiting
        step.schedule(first, 4)
        step.schedule(second, 4)
        step.preempt(second)

    engine = scripted(hesitate, admit_all)
    a, b = engine.add(4), engine.add(4)
    assert engine.step() == {a: 4}
    assert (engine.plan.preempted, list(engine.plan.new), engine.waiting) == ((), [a], [b])
    assert engine.step() == {b: 4}
    assert list(engine.plan.new) == [b]


def test_policy_sees_blocks_and_cached_prefixes():
    seen: list[object] = []

    def look(step: StepBuilder) -> None:
        [request] = step.waiting
        seen.extend((step.num_cached_tokens(request), step.num_available_blocks, step.num_blocks, step.block_size))
        seen.extend((step.fits(request, 12, leaving=6), step.fits(request, 12, leaving=7), step.now_s))

    engine = scripted(admit_all, look, num_blocks=10)
    engine.add(range(10), max_tokens=5)
    engine.step()
    engine.add(range(12))
    engine.step()
    assert seen == [8, 7, 10, 4, True, False, 1.0]


def test_policy_sees_what_a_reservation_will_take():
    seen: list[int] = []

    def look(step: StepBuilder) -> None:
        seen.extend((step.num_blocks_for(8), step.num_blocks_for(9), step.num_blocks_for(1000), step.max_model_len))

    for options in ({"num_blocks": 10}, {"num_blocks": 100, "max_model_len": 30}):
        engine = scripted(look, **options)
        engine.add(4)
        engine.step()
    assert seen == [2, 3, 10, 10_000, 2, 3, 8, 30]


def test_policy_sees_the_blocks_that_a_request_holds():
    seen: list[int] = []

    def look(step: StepBuilder) -> None:
        for request in (*step.running, *step.waiting):
            seen.append(step.num_blocks_held(request))
            step.schedule(request, 1000)
            seen.append(step.num_blocks_held(request))

    engine = scripted(look, look)
    engine.add(8)
    engine.steps(2)
    assert seen == [0, 2, 2, 3]

import pytest

from engine.request import FinishReason
from engine.scheduling.policy import Limits
from tests.engine.scheduling.driver import Driver, scheduler
from tests.helpers import expected_tokens


def static(batch_size: int, **options: object) -> Driver:
    return scheduler("static", **{"batch_size": batch_size, "queue_end_ms": 0, **options})


# Admission


def test_full_batch_starts_at_once():
    engine = static(2, queue_end_ms=100)
    a, b, c = engine.add(4), engine.add(4), engine.add(4)
    assert engine.step() == {a: 4, b: 4}
    assert engine.waiting == [c]


def test_part_of_a_batch_waits_for_the_queue_to_end():
    engine = static(2, queue_end_ms=1500)
    a = engine.add(4)
    assert engine.step() == {} and engine.scheduler.wait_until_s == 1.5
    assert engine.step() == {} and engine.scheduler.wait_until_s == 1.5
    assert engine.step() == {a: 4} and engine.scheduler.wait_until_s is None


def test_arrival_puts_off_the_end_of_the_queue():
    engine = static(3, queue_end_ms=1500)
    a = engine.add(4)
    engine.step()
    b = engine.add(4)
    assert engine.step() == {} and engine.scheduler.wait_until_s == 2.5
    assert engine.steps(2) == [{}, {a: 4, b: 4}]


def test_request_that_fills_the_batch_ends_the_wait():
    engine = static(2, queue_end_ms=1500)
    a = engine.add(4)
    engine.step()
    b = engine.add(4)
    assert engine.step() == {a: 4, b: 4}


def test_empty_queue_waits_for_nothing():
    engine = static(2, queue_end_ms=100)
    assert engine.step() == {} and engine.scheduler.wait_until_s is None


def test_nobody_joins_until_the_longest_member_has_ended():
    engine = static(2)
    a, b = engine.add(4, max_tokens=1), engine.add(4, max_tokens=3)
    c = engine.add(4, max_tokens=1)
    assert engine.steps(4) == [{a: 4, b: 4}, {b: 1}, {b: 1}, {c: 4}]


def test_batch_is_cut_to_what_the_pool_holds():
    engine = static(3, num_blocks=6)
    a, b, c = (engine.add(4, max_tokens=6) for _ in range(3))
    assert engine.step() == {a: 4, b: 4}               # three blocks each
    assert engine.waiting == [c]
    engine.run()
    assert list(engine.done) == [a, b, c]


def test_batch_is_cut_to_the_prompt_rows_of_a_step():
    engine = static(3, max_prompt_rows=24)
    a, b, c, d = engine.add(6), engine.add(12), engine.add(6), engine.add(25)
    assert engine.step() == {a: 6, b: 12}              # 3 × 12 rows are too many
    for name in (a, b):
        engine.finish(name)
    assert engine.step() == {c: 6}
    engine.finish(c)
    assert engine.step() == {d: 25}                    # one always may start


def test_limits_of_the_policy_are_those_of_its_batch():
    assert scheduler("static", batch_size=3).scheduler.policy.limits == Limits(3 * 512, 3)
    assert scheduler("static", batch_size=3, max_prompt_rows=24).scheduler.policy.limits == Limits(24, 3)


def test_padding_takes_slots_too():
    engine = static(2, num_blocks=7)
    a, b = engine.add(2, max_tokens=2), engine.add(10, max_tokens=2)
    assert engine.step() == {a: 2, b: 10}
    assert [len(engine.block_table(name)) for name in (a, b)] == [3, 3]


def test_request_larger_than_the_pool_has_it_alone():
    engine = static(2, num_blocks=4)
    a, b = engine.add(8, max_tokens=1000), engine.add(4, max_tokens=2)
    assert engine.step() == {a: 8}
    engine.run()
    assert len(engine.output(a)) == 9 and len(engine.output(b)) == 2


@pytest.mark.parametrize(("reserve", "num_blocks"), [("request", 3), ("max_model_len", 8)])
def test_a_member_reserves_its_maximum_or_the_context(reserve: str, num_blocks: int):
    engine = static(1, max_model_len=32, reserve=reserve)
    a = engine.add(4, max_tokens=6)
    engine.step()
    assert len(engine.block_table(a)) == num_blocks


# Composition


def test_prompts_are_padded_to_the_longest():
    engine = static(3)
    a, b, c = engine.add(3), engine.add(8), engine.add(8)
    assert engine.step() == {a: 3, b: 8, c: 8}
    assert engine.plan.padding == {a: 5}


def test_finished_member_keeps_its_seat_its_slots_and_a_row_to_the_end():
    engine = static(2)
    a, b = engine.add(4, max_tokens=2), engine.add(4, max_tokens=4)
    engine.steps(2)
    assert engine.kv.num_used_blocks == 4
    for _ in range(2):
        assert engine.step() == {b: 1}
        assert engine.plan.padding == {a: 1}
        assert (engine.plan.start[a], engine.plan.block_tables[a]) == (5, (0, 1))
    assert engine.kv.num_used_blocks == 0
    assert engine.step() == {} and engine.plan.padding == {}


def test_batch_computes_exactly_its_size_times_its_longest_rows():
    lengths = [(3, 2), (8, 9), (5, 1), (6, 12)]        # prompt, output
    engine = static(4)
    for prompt, output in lengths:
        engine.add(prompt, max_tokens=output)
    rows: list[int] = []
    while engine.scheduler.requests:
        engine.step()
        rows.append(engine.num_rows)
    assert rows == [4 * 8] + [4] * 11
    assert sum(rows) == 4 * (8 + 12 - 1)


def test_padding_is_counted_from_what_the_prefix_cache_leaves_to_compute():
    engine = static(2)
    engine.add(range(12), max_tokens=1)
    engine.run()
    b, c = engine.add(range(12)), engine.add(3)
    assert engine.step() == {b: 4, c: 3}               # eight tokens of b are found
    assert engine.plan.padding == {c: 1}


# Ends


def test_aborted_member_gives_up_its_seat_and_the_batch_goes_on():
    engine = static(2)
    a, b = engine.add(4, max_tokens=9), engine.add(4, max_tokens=3)
    engine.step()
    engine.finish(a, FinishReason.ABORT)
    c = engine.add(4, max_tokens=1)
    assert engine.steps(3) == [{b: 1}, {b: 1}, {c: 4}]
    assert engine.runner.plans[1].padding == {}


def test_batch_ends_when_its_last_member_is_aborted():
    engine = static(2)
    a, b = engine.add(4, max_tokens=1), engine.add(4, max_tokens=9)
    c = engine.add(4, max_tokens=1)
    engine.steps(2)
    engine.finish(b, FinishReason.ABORT)
    assert engine.step() == {c: 4}
    assert list(engine.done) == [a, b, c]


def test_member_that_stops_early_keeps_its_seat():
    engine = static(2)
    a, b = engine.add(4, max_tokens=9), engine.add(4, max_tokens=3)
    engine.step()
    engine.finish(a, FinishReason.STOP)
    assert engine.step() == {b: 1} and engine.plan.padding == {a: 1}


def test_queue_that_empties_fills_again():
    engine = static(2, queue_end_ms=100)
    for _ in range(3):
        names = [engine.add(5, max_tokens=3) for _ in range(3)]
        engine.run()
        for name in names:
            prompt = engine.done[name].generation.prompt_token_ids
            assert engine.output(name) == expected_tokens(prompt, 3)
        assert engine.kv.num_used_blocks == 0

import pytest

from engine.request import FinishReason
from tests.engine.scheduling.driver import scheduler


def test_whole_prompt_joins_decodes_at_the_next_iteration():
    engine = scheduler("orca")
    a = engine.add(5)
    assert engine.step() == {a: 5}
    b = engine.add(70)                                 # more than the device's step: prompts are never cut
    assert engine.steps(2) == [{a: 1, b: 70}, {a: 1, b: 1}]


def test_several_prompts_in_one_iteration_keep_the_device_s_bound():
    engine = scheduler("orca", num_blocks=1000)        # 64 tokens
    for length in (30, 34, 1):
        engine.add(length)
    assert engine.steps(2) == [{"a": 30, "b": 34}, {"a": 1, "b": 1, "c": 1}]


def test_seat_of_a_finished_request_is_taken_at_the_next_iteration():
    engine = scheduler("orca", max_num_seqs=2)
    a, b, c = engine.add(4, max_tokens=2), engine.add(4, max_tokens=9), engine.add(4)
    assert engine.steps(3) == [{a: 4, b: 4}, {a: 1, b: 1}, {b: 1, c: 4}]
    assert not engine.plan.padding


def test_maximum_must_have_room_and_nobody_overtakes():
    engine = scheduler("orca", num_blocks=6)
    a, b = engine.add(4, max_tokens=12), engine.add(4, max_tokens=8)
    c = engine.add(4, max_tokens=4)                    # would fit, but is behind b
    assert engine.steps(2) == [{a: 4}, {a: 1}]
    assert len(engine.block_table(a)) == 4
    engine.finish(a)
    assert engine.step() == {b: 4, c: 4}
    assert (len(engine.block_table(b)), len(engine.block_table(c))) == (3, 2)


def test_running_request_never_lacks_a_block():
    engine = scheduler("orca", num_blocks=7)
    for _ in range(5):
        engine.add(7, max_tokens=5)
    engine.run()
    assert engine.scheduler.num_preemptions == 0
    assert all(len(engine.output(name)) == 5 for name in "abcde")


@pytest.mark.parametrize(("reserve", "num_blocks", "num_running"), [("request", 2, 3), ("max_model_len", 5, 2)])
def test_reservation_of_the_context_admits_fewer(reserve: str, num_blocks: int, num_running: int):
    engine = scheduler("orca", num_blocks=10, max_model_len=20, reserve=reserve)
    for _ in range(3):
        engine.add(4, max_tokens=4)
    assert len(engine.step()) == num_running
    assert len(engine.block_table("a")) == num_blocks


def test_request_that_may_fill_the_pool_has_it_alone():
    engine = scheduler("orca", num_blocks=4)
    a, b = engine.add(8, max_tokens=1000), engine.add(1, max_tokens=1)
    assert engine.step() == {a: 8}
    engine.run()
    assert (len(engine.output(a)), len(engine.output(b))) == (9, 1)


def test_aborted_request_gives_its_reservation_back():
    engine = scheduler("orca", num_blocks=4)
    a, b = engine.add(4, max_tokens=12), engine.add(4, max_tokens=12)
    engine.step()
    engine.finish(a, FinishReason.ABORT)
    assert engine.step() == {b: 4}


def test_cached_prefix_is_shared_within_the_reservation():
    engine = scheduler("orca", num_blocks=8)
    a = engine.add(range(12), max_tokens=4)
    engine.step()
    b = engine.add(range(12), max_tokens=4)
    assert engine.step() == {a: 1, b: 4}
    assert engine.block_table(b)[:2] == engine.block_table(a)[:2]
    assert len(engine.block_table(b)) == 4

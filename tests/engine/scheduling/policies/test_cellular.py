from engine.request import FinishReason
from engine.scheduling.policy import Limits
from tests.engine.scheduling.driver import scheduler


def test_prompts_are_fed_one_token_a_step():
    engine = scheduler("cellular")
    a = engine.add(4, max_tokens=3)
    steps = engine.steps(7)
    assert steps == [{a: 1}] * 6 + [{}]
    assert [plan.start[a] for plan in engine.runner.plans[:6]] == [0, 1, 2, 3, 4, 5]
    assert [plan.sampling for plan in engine.runner.plans[:6]] == [()] * 3 + [(a,)] * 3


def test_requests_join_and_leave_at_any_token():
    engine = scheduler("cellular", max_num_seqs=2)
    a = engine.add(2, max_tokens=2)
    engine.step()
    b, c = engine.add(3), engine.add(3)
    assert engine.steps(4) == [{a: 1, b: 1}, {a: 1, b: 1}, {b: 1, c: 1}, {b: 1, c: 1}]


def test_seat_of_an_aborted_request_is_taken_at_the_next_cell():
    engine = scheduler("cellular", max_num_seqs=1)
    a, b = engine.add(9), engine.add(9)
    engine.step()
    engine.finish(a, FinishReason.ABORT)
    assert engine.step() == {b: 1}


def test_seats_default_to_those_of_the_device():
    engine = scheduler("cellular")                     # eight
    for _ in range(10):
        engine.add(3)
    assert len(engine.step()) == 8


def test_step_holds_no_more_tokens_than_requests():
    assert scheduler("cellular", max_num_seqs=3).scheduler.policy.limits == Limits(3, 3)


def test_request_joins_only_if_its_prompt_has_room_beside_prompts_under_way():
    engine = scheduler("cellular", num_blocks=5)
    a, b = engine.add(12, max_tokens=1), engine.add(8, max_tokens=1)
    c = engine.add(4, max_tokens=1)
    assert engine.step() == {a: 1, b: 1}               # which will take all five blocks
    assert engine.steps(7) == [{a: 1, b: 1}] * 7
    assert engine.step() == {a: 1, c: 1}
    engine.run()
    assert engine.scheduler.num_preemptions == 0


def test_cache_is_taken_block_by_block():
    engine = scheduler("cellular")
    a = engine.add(6)
    held = []
    for _ in range(6):
        engine.step()
        held.append(len(engine.block_table(a)))
    assert held == [1, 1, 1, 1, 2, 2]


def test_nobody_takes_the_block_of_one_put_back_in_the_same_step():
    engine = scheduler("cellular", num_blocks=3, max_num_seqs=3, prefix_caching=False)
    a, b, c = engine.add(4, max_tokens=2), engine.add(4), engine.add(4)
    d = engine.add(3, max_tokens=1)
    assert engine.steps(4) == [{a: 1, b: 1, c: 1}] * 4
    assert engine.step() == {a: 1}                     # takes the block of c; b gives up its own
    assert (engine.running, engine.waiting, engine.kv.num_available_blocks) == ([], [b, c, d], 3)


def test_preempted_request_comes_back_and_ends():
    engine = scheduler("cellular", num_blocks=3, prefix_caching=False)
    a, b = engine.add(4, max_tokens=6), engine.add(4, max_tokens=6)
    c = engine.add(1, max_tokens=1)
    assert engine.steps(4) == [{a: 1, b: 1, c: 1}] + [{a: 1, b: 1}] * 3
    assert engine.step() == {a: 1}                     # takes the third block; b lacks a second one
    assert (engine.running, engine.waiting) == ([a], [b])
    assert engine.request(b).num_preemptions == 1
    engine.run()
    assert [len(engine.output(name)) for name in (a, b, c)] == [6, 6, 1]

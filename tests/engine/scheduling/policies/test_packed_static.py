from tests.engine.scheduling.driver import scheduler


def test_only_live_rows_are_computed():
    engine = scheduler("packed_static", batch_size=3, queue_end_ms=0)
    a, b, c = engine.add(3, max_tokens=1), engine.add(8, max_tokens=3), engine.add(5, max_tokens=2)
    rows: list[int] = []
    steps: list[dict[str, int]] = []
    while engine.scheduler.requests:
        steps.append(engine.step())
        rows.append(engine.num_rows)
        assert not engine.plan.padding
    assert steps == [{a: 3, b: 8, c: 5}, {b: 1, c: 1}, {b: 1}]
    assert rows == [16, 2, 1]


def test_slots_of_a_finished_member_are_held_and_nobody_joins():
    engine = scheduler("packed_static", batch_size=2, queue_end_ms=0)
    engine.add(4, max_tokens=1), engine.add(4, max_tokens=3)
    c = engine.add(4)
    engine.steps(2)
    assert engine.kv.num_used_blocks == 4
    assert engine.waiting == [c]
    assert engine.steps(2)[1] == {c: 4}


def test_slots_are_set_aside_for_tokens_alone():
    engine = scheduler("packed_static", batch_size=2, queue_end_ms=0)
    a, b = engine.add(2, max_tokens=2), engine.add(10, max_tokens=2)
    engine.step()
    assert [len(engine.block_table(name)) for name in (a, b)] == [1, 3]


def test_batch_is_cut_to_the_live_rows_of_a_step():
    engine = scheduler("packed_static", batch_size=3, queue_end_ms=0, max_prompt_rows=24)
    a, b, c = engine.add(6), engine.add(12), engine.add(6)
    assert engine.step() == {a: 6, b: 12, c: 6}


def test_waits_for_a_full_batch_or_the_end_of_the_queue():
    engine = scheduler("packed_static", batch_size=2, queue_end_ms=500)
    a = engine.add(4)
    assert engine.step() == {} and engine.scheduler.wait_until_s == 0.5
    assert engine.step() == {a: 4}

from tests.engine.scheduling.driver import scheduler


def test_full_batch_starts_at_once():
    engine = scheduler("static_impatient", batch_size=2)
    a, b = engine.add(4), engine.add(4)
    assert engine.step() == {a: 4, b: 4}


def test_oldest_waits_no_longer_than_allowed_whoever_else_comes():
    engine = scheduler("static_impatient", batch_size=4, max_wait_ms=1500)
    a = engine.add(4)
    assert engine.step() == {} and engine.scheduler.wait_until_s == 1.5
    b = engine.add(4)
    assert engine.step() == {} and engine.scheduler.wait_until_s == 1.5
    c = engine.add(4)
    assert engine.step() == {a: 4, b: 4, c: 4}


def test_wait_is_over_for_those_who_waited_through_the_last_batch():
    engine = scheduler("static_impatient", batch_size=2, max_wait_ms=1500)
    a, b = engine.add(4, max_tokens=3), engine.add(4, max_tokens=3)
    c = engine.add(4)
    assert engine.steps(4) == [{a: 4, b: 4}, {a: 1, b: 1}, {a: 1, b: 1}, {c: 4}]


def test_without_patience_whatever_waits_starts():
    engine = scheduler("static_impatient", batch_size=4, max_wait_ms=0)
    a = engine.add(4)
    assert engine.step() == {a: 4}


def test_batches_are_padded_and_keep_their_seats():
    engine = scheduler("static_impatient", batch_size=2)
    a, b = engine.add(3, max_tokens=1), engine.add(5, max_tokens=3)
    c = engine.add(4)
    assert engine.step() == {a: 3, b: 5} and engine.plan.padding == {a: 2}
    assert engine.step() == {b: 1} and engine.plan.padding == {a: 1}
    assert engine.waiting == [c]

from engine.request import FinishReason
from tests.engine.scheduling.driver import Driver, scheduler


def ray_serve(**options: object) -> Driver:
    defaults = {"num_blocks": 1000, "waiting_served_ratio": 1.0, "max_waiting_tokens": 100}
    return scheduler("ray_serve_2023", **{**defaults, **options})


def test_decoding_pauses_by_the_rule_of_tgi():
    engine = ray_serve(waiting_served_ratio=1.5, max_waiting_tokens=3)
    a, b = engine.add(4), engine.add(4)
    assert engine.steps(2) == [{a: 4, b: 4}, {a: 1, b: 1}]
    c, d = engine.add(4), engine.add(4)
    assert engine.step() == {a: 1, b: 1}               # ⌊2 × 1.5⌋ are needed
    e = engine.add(4)
    assert engine.steps(2) == [{c: 4, d: 4, e: 4}, dict.fromkeys("abcde", 1)]
    f = engine.add(4)
    assert engine.steps(3) == [dict.fromkeys("abcde", 1)] * 2 + [{f: 4}]


def test_defaults_are_those_of_the_batcher():
    parameters = scheduler("ray_serve_2023").scheduler.policy.parameters.model_dump()
    assert (parameters["waiting_served_ratio"], parameters["max_waiting_tokens"]) == (1.2, 20)


def test_maximum_is_counted_but_not_set_aside():
    engine = ray_serve(max_batch_total_tokens=50)
    a, b = engine.add(4, max_tokens=20), engine.add(4, max_tokens=20)
    c = engine.add(4, max_tokens=20)
    assert engine.step() == {a: 4, b: 4}
    assert engine.waiting == [c]
    assert [len(engine.block_table(name)) for name in (a, b)] == [1, 1]


def test_prompts_of_one_step_keep_the_device_s_bound_or_are_one():
    engine = ray_serve(waiting_served_ratio=0)         # the device's step is 64
    for length in (30, 30, 30, 70):
        engine.add(length, max_tokens=10)
    assert engine.steps(4) == [{"a": 30, "b": 30}, {"c": 30}, dict.fromkeys("abc", 1), {"d": 70}]


def test_request_beyond_the_quota_runs_alone():
    engine = ray_serve(max_batch_total_tokens=10)
    a, b = engine.add(8, max_tokens=4), engine.add(2, max_tokens=2)
    assert engine.steps(5) == [{a: 8}, {a: 1}, {a: 1}, {a: 1}, {b: 2}]


def test_newest_is_recomputed_and_the_quota_falls_until_those_who_ran_out_have_left():
    engine = ray_serve(num_blocks=4, max_batch_total_tokens=24, prefix_caching=False)
    a, b = engine.add(4, max_tokens=8), engine.add(4, max_tokens=8)      # 12 tokens each: the whole quota
    assert engine.steps(5) == [{a: 4, b: 4}] + [{a: 1, b: 1}] * 4
    assert engine.step() == {a: 1}                     # its ninth token takes a block of b
    assert engine.waiting == [b]
    assert engine.steps(2) == [{a: 1}] * 2             # room for b in the quota of 24, not in 0.7 of it
    assert a in engine.done
    c = engine.add(3, max_tokens=1)
    assert engine.step() == {b: 9, c: 3}               # 12 + 4 tokens: the quota is whole again
    engine.run()
    assert engine.scheduler.num_preemptions == 1


def test_quota_stays_low_while_one_that_ran_out_is_left():
    engine = ray_serve(num_blocks=5, max_batch_total_tokens=30, max_waiting_tokens=0, prefix_caching=False)
    a, b = engine.add(4, max_tokens=4), engine.add(4, max_tokens=9)      # 8, 13 and 9: all of the quota
    c = engine.add(4, max_tokens=5)
    engine.step()
    assert engine.step() == {a: 1, b: 1}               # the second blocks of a and b, not of c
    assert engine.waiting == [c]
    assert engine.steps(2) == [{a: 1, b: 1}] * 2       # c's 9 beside 8 + 13 would need 30; the quota is 21
    assert engine.done.keys() == {a}
    assert engine.step() == {b: 1}                     # 13 + 9 is more than 21
    engine.finish(b, FinishReason.ABORT)
    assert engine.step() == {c: 5}


def test_prompts_within_the_quota_wait_for_blocks_while_decoding_goes_on():
    engine = ray_serve(num_blocks=4, max_batch_total_tokens=1000)
    a, b = engine.add(12, max_tokens=3), engine.add(8, max_tokens=2)
    assert engine.steps(4) == [{a: 12}, {a: 1}, {a: 1}, {b: 8}]

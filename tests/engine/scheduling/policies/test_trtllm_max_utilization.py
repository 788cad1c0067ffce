from engine.scheduling.policies.trtllm_max_utilization import TrtllmMaxUtilization
from engine.scheduling.policy import CPU_LIMITS, Limits
from tests.engine.scheduling.driver import scheduler


def test_defaults():
    policy = TrtllmMaxUtilization(TrtllmMaxUtilization.Parameters(), CPU_LIMITS)
    assert (policy.limits, policy.steps.chunked) == (Limits(8192, CPU_LIMITS.max_num_seqs), False)


def test_whatever_fits_now_starts_whatever_others_will_need():
    engine = scheduler("trtllm_max_utilization", num_blocks=4)
    names = [engine.add(4, max_tokens=13) for _ in range(5)]
    assert list(engine.step()) == names[:4]
    assert engine.kv.num_available_blocks == 0


def test_newest_is_paused_and_nobody_starts_in_that_step():
    engine = scheduler("trtllm_max_utilization", num_blocks=5)
    a, b = engine.add(4, max_tokens=9), engine.add(12, max_tokens=3)
    assert engine.step() == {a: 4, b: 12}
    c = engine.add(1)
    assert engine.step() == {a: 1}                     # one block was left; b needs one too and is paused
    assert (engine.plan.preempted, engine.waiting) == ((b,), [b, c])


def test_paused_request_comes_back_first_as_soon_as_it_fits():
    engine = scheduler("trtllm_max_utilization", num_blocks=5, prefix_caching=False)
    a, b = engine.add(4, max_tokens=3), engine.add(12, max_tokens=3)
    engine.steps(2)
    c = engine.add(1)
    assert engine.steps(2) == [{a: 1}, {b: 13, c: 1}]


def test_prompt_takes_all_its_blocks_when_it_starts():
    engine = scheduler("trtllm_max_utilization", num_blocks=6, max_num_tokens=8, enable_chunked_context=True)
    a, b, c = engine.add(16, max_tokens=2), engine.add(8), engine.add(4)
    assert engine.steps(2) == [{a: 8}, {a: 8}]
    assert len(engine.block_table(a)) == 4
    assert engine.step() == {a: 1}                     # a's fifth block leaves one: too few for b, and c is behind it
    assert engine.step() == {b: 8}
    assert engine.waiting == [c]


def test_prompt_in_the_making_is_paused_for_an_older_decode():
    engine = scheduler("trtllm_max_utilization", num_blocks=5, max_num_tokens=9, enable_chunked_context=True)
    a = engine.add(7, max_tokens=9)
    engine.step()
    b = engine.add(12)
    assert engine.steps(2) == [{a: 1, b: 8}, {a: 1}]
    assert engine.waiting == [b]


def test_everyone_ends_however_often_paused():
    engine = scheduler("trtllm_max_utilization", num_blocks=6, max_num_tokens=8)
    names = [engine.add(6, max_tokens=10) for _ in range(7)]
    engine.run()
    assert list(engine.done) == names
    assert engine.scheduler.num_preemptions > 0

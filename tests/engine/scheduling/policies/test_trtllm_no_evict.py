import pytest

from engine.scheduling.policies.trtllm_no_evict import TrtllmNoEvict
from engine.scheduling.policy import CPU_LIMITS, Limits
from tests.engine.scheduling.driver import scheduler


def test_defaults():
    policy = TrtllmNoEvict(TrtllmNoEvict.Parameters(), CPU_LIMITS)
    assert (policy.limits, policy.steps.chunked) == (Limits(8192, CPU_LIMITS.max_num_seqs), False)


def test_request_starts_only_if_its_maximum_fits_beside_what_is_promised():
    engine = scheduler("trtllm_no_evict", num_blocks=9)
    a, b, c = engine.add(4, max_tokens=12), engine.add(4, max_tokens=16), engine.add(4, max_tokens=8)
    d = engine.add(4, max_tokens=1)                    # would fit at once, but is behind c
    assert engine.step() == {a: 4, b: 4}               # 4 + 5 blocks are promised, 2 are held
    assert (engine.kv.num_used_blocks, engine.waiting) == (2, [c, d])
    assert engine.steps(11) == [{a: 1, b: 1}] * 11
    assert engine.step() == {b: 1, c: 4}               # a has ended: 4 blocks for c, which may need 3, and d 2


def test_blocks_are_taken_as_needed_and_never_lacking():
    engine = scheduler("trtllm_no_evict", num_blocks=8, max_num_tokens=16, enable_chunked_context=True)
    names = [engine.add(5 + number, max_tokens=9) for number in range(6)]
    engine.run()
    assert engine.scheduler.num_preemptions == 0
    assert all(len(engine.output(name)) == 9 for name in names)


def test_shared_prefix_is_promised_once():
    engine = scheduler("trtllm_no_evict", num_blocks=7)
    a = engine.add(range(12), max_tokens=4)
    engine.step()
    b = engine.add([*range(12), 99], max_tokens=3)     # 4 blocks, of which 3 are a's
    assert engine.step() == {a: 1, b: 1}
    c = engine.add(1, max_tokens=8)                    # 3 blocks: 7 - 4 - 1 leave 2
    assert engine.step() == {a: 1, b: 1}
    assert engine.waiting == [c]


@pytest.mark.parametrize(("reserve", "num_running"), [("request", 3), ("max_model_len", 2)])
def test_context_may_be_promised_instead(reserve: str, num_running: int):
    engine = scheduler("trtllm_no_evict", num_blocks=10, max_model_len=20, reserve=reserve)
    for _ in range(3):
        engine.add(4, max_tokens=4)
    assert len(engine.step()) == num_running


def test_request_that_may_need_more_than_the_pool_runs_alone():
    engine = scheduler("trtllm_no_evict", num_blocks=4)
    a, b = engine.add(8, max_tokens=1000), engine.add(1, max_tokens=1)
    assert engine.step() == {a: 8}
    engine.run()
    assert (len(engine.output(a)), len(engine.output(b))) == (9, 1)


# Composition, which trtllm_max_utilization shares


def test_whole_prompts_join_decodes_and_wait_for_room_in_a_step():
    engine = scheduler("trtllm_no_evict", max_num_tokens=12)
    a = engine.add(4)
    assert engine.step() == {a: 4}
    b, c, d = engine.add(8, max_tokens=9), engine.add(10, max_tokens=9), engine.add(1, max_tokens=9)
    assert engine.steps(3) == [{a: 1, b: 8}, {a: 1, b: 1, c: 10}, {a: 1, b: 1, c: 1, d: 1}]


def test_chunks_are_multiples_of_the_block_but_for_the_last():
    engine = scheduler("trtllm_no_evict", max_num_tokens=12, enable_chunked_context=True)
    a = engine.add(4)
    engine.step()
    b, c = engine.add(22), engine.add(5)
    assert engine.steps(4) == [{a: 1, b: 8}, {a: 1, b: 8}, {a: 1, b: 6, c: 5}, {a: 1, b: 1, c: 1}]


def test_chunk_smaller_than_a_block_is_left_out():
    engine = scheduler("trtllm_no_evict", max_num_tokens=10, enable_chunked_context=True)
    a, b, c = engine.add(7), engine.add(9), engine.add(1)
    assert engine.steps(3) == [{a: 7}, {a: 1, b: 9}, {a: 1, b: 1, c: 1}]    # nobody overtakes b


def test_prompt_longer_than_any_step_is_cut_though_chunks_are_off():
    engine = scheduler("trtllm_no_evict", max_num_tokens=10)
    a = engine.add(1)
    engine.step()
    b, c = engine.add(21), engine.add(2)
    assert engine.steps(4) == [{a: 1, b: 8}, {a: 1, b: 8}, {a: 1, b: 5, c: 2}, {a: 1, b: 1, c: 1}]


def test_step_smaller_than_a_block_still_computes_prompts():
    engine = scheduler("trtllm_no_evict", max_num_tokens=3, enable_chunked_context=True)
    a, b = engine.add(8, max_tokens=2), engine.add(2, max_tokens=1)
    assert engine.steps(4) == [{a: 3}, {a: 3}, {a: 2}, {a: 1, b: 2}]


def test_requests_are_limited_and_never_more_than_tokens():
    for options in ({"max_batch_size": 2}, {"max_num_tokens": 2}):
        engine = scheduler("trtllm_no_evict", **options)
        names = [engine.add(1, max_tokens=2) for _ in range(3)]
        assert [list(step) for step in engine.steps(3)] == [names[:2], names[:2], names[2:]]

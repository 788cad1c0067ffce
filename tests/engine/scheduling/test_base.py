import pytest

from engine.errors import ContextTooLong, IntegrityError, InvalidRequest, RequestTooLarge
from engine.request import FinishReason, RequestStatus
from tests.engine.scheduling.driver import scheduler
from tests.helpers import expected_tokens


def test_nothing_to_do_is_an_empty_plan():
    engine = scheduler()
    assert engine.step() == {}
    assert engine.plan.num_tokens == 0


def test_plan_says_all_that_the_runner_needs():
    engine = scheduler(max_num_batched_tokens=6)
    a = engine.add([1, 2, 3, 4, 5, 6, 7, 8, 9], max_tokens=2)
    generation = engine.request(a).generation
    engine.step()
    assert engine.plan.new == {a: (generation, (1, 2, 3, 4, 5, 6, 7, 8, 9))}
    assert (engine.plan.start, engine.plan.block_tables, engine.plan.sampling) == ({a: 0}, {a: (0, 1)}, ())
    engine.step()
    assert engine.plan.new == {}
    assert (engine.plan.start, engine.plan.block_tables, engine.plan.sampling) == ({a: 6}, {a: (0, 1, 2)}, (a,))


def test_block_table_in_the_plan_is_the_same_object_until_it_grows():
    engine = scheduler()
    a = engine.add(6)
    tables = []
    for _ in range(4):                                # 6, 7, 8 and 9 tokens
        engine.step()
        tables.append(engine.plan.block_tables[a])
    assert tables == [(0, 1), (0, 1), (0, 1), (0, 1, 2)]
    assert tables[0] is tables[1] is tables[2]


def test_output_is_that_of_the_model_whatever_the_steps():
    engine = scheduler(num_blocks=9, max_num_batched_tokens=5)
    prompts = {engine.add(range(10 * n, 11 * n)): range(10 * n, 11 * n) for n in (3, 7, 12)}
    engine.run()
    for request_id, prompt in prompts.items():
        output = engine.output(request_id)
        assert output == expected_tokens(prompt, len(output)) and len(output) >= 20


def test_finished_is_told_once_with_the_next_step_that_computes():
    engine = scheduler()
    a, b = engine.add(4, max_tokens=1), engine.add(4, max_tokens=3)
    engine.step()
    assert engine.plan.finished == ()
    engine.step()
    assert engine.plan.finished == (a,)
    engine.step()
    assert engine.plan.finished == ()
    assert engine.step() == {} and engine.plan.finished == ()
    engine.add(4)
    engine.step()
    assert engine.plan.finished == (b,)


def test_runner_is_not_told_of_the_end_of_what_it_never_knew():
    engine = scheduler(max_num_seqs=1)
    engine.add(4)
    b = engine.add(4)
    engine.step()
    engine.finish(b, FinishReason.ABORT)
    engine.step()
    assert engine.plan.finished == ()


def test_preempted_request_is_not_new_again():
    engine = scheduler(num_blocks=4)
    a, b = engine.add(7, max_tokens=5), engine.add(7, max_tokens=5)
    engine.steps(2)
    assert engine.step() == {a: 1}                    # a's ninth token needs a third block
    assert engine.plan.preempted == (b,)
    request = engine.request(b)
    assert (request.status, request.num_computed_tokens, request.num_preemptions) == (RequestStatus.PREEMPTED, 0, 1)
    assert engine.scheduler.num_preemptions == 1
    engine.run()
    assert [plan.preempted for plan in engine.runner.plans if plan.preempted] == [(b,)]
    assert sum(b in plan.new for plan in engine.runner.plans) == 1
    for request_id in (a, b):
        request = engine.done[request_id]
        assert engine.output(request_id) == expected_tokens(request.generation.prompt_token_ids, 5)


def test_preempted_request_resumes_from_what_the_cache_still_holds():
    engine = scheduler(num_blocks=5)
    a, b = engine.add(8, max_tokens=3), engine.add(8, max_tokens=8)
    engine.steps(2)                                   # a takes the last block for its ninth token, b lacks one
    assert (engine.running, engine.waiting) == ([a], [b])
    assert engine.step() == {a: 1}
    assert engine.step() == {b: 1}                    # eight of nine tokens are found again
    assert engine.plan.start == {b: 8}
    assert engine.request(b).num_cached_tokens == 0   # as at first admission


def test_resumed_request_brings_its_output_along():
    prompt = [1, 2, 3, 4, 5]
    whole = expected_tokens(prompt, 6)
    engine = scheduler()
    a = engine.add(prompt, max_tokens=6, resume=whole[:2])
    assert engine.step() == {a: 7}
    assert engine.plan.new[a][1] == (*prompt, *whole[:2])
    engine.run()
    assert engine.output(a) == whole


def test_prompt_beyond_the_pool_is_refused_and_delays_nobody():
    engine = scheduler(num_blocks=4)                  # 16 tokens
    with pytest.raises(RequestTooLarge, match=r"has 16 tokens.*holds 16 tokens") as error:
        engine.add(16)
    assert error.value.param == "prompt"
    a = engine.add(15)
    assert engine.step() == {a: 15}


def test_prompt_beyond_the_context_is_refused():
    engine = scheduler(max_model_len=8)
    with pytest.raises(ContextTooLong, match=r"has 8 tokens.*context is 8 tokens") as error:
        engine.add(8)
    assert error.value.param == "prompt"
    with pytest.raises(ContextTooLong):
        engine.add(5, resume=[1, 2, 3])
    assert engine.scheduler.requests == {}


def test_empty_prompt_and_id_in_use_are_refused():
    engine = scheduler()
    with pytest.raises(InvalidRequest, match="no tokens"):
        engine.add([])
    engine.add(3, name="x")
    with pytest.raises(InvalidRequest, match="'x' is already here"):
        engine.add(3, name="x")


def test_request_alone_ends_at_the_limit_of_the_pool():
    engine = scheduler(num_blocks=4)                  # 16 slots: 16 tokens computed, the 17th only sampled
    a = engine.add(10, max_tokens=1000)
    engine.run()
    assert len(engine.output(a)) == 7
    assert engine.kv.num_used_blocks == 0


def test_request_ends_at_the_limit_of_the_context():
    engine = scheduler(max_model_len=12)
    a = engine.add(10, max_tokens=1000)
    engine.run()
    assert len(engine.output(a)) == 2


def test_integrity_check_sees_a_request_left_beyond_its_limit():
    engine = scheduler(num_blocks=2)
    a = engine.add(7)
    for _ in range(2):
        plan = engine.scheduler.schedule()
        engine.scheduler.resolve(plan, engine.scheduler.advance(plan), {a: 1})
    with pytest.raises(IntegrityError, match="at its limit"):
        engine.scheduler.check_integrity()


def test_abort_of_a_waiting_request_leaves_the_others_in_order():
    engine = scheduler(max_num_seqs=1)
    a, b, c = engine.add(4, max_tokens=2), engine.add(4), engine.add(4)
    engine.step()
    engine.finish(b, FinishReason.ABORT)
    engine.scheduler.check_integrity()
    assert engine.steps(2) == [{a: 1}, {c: 4}]


@pytest.mark.parametrize("num_steps", [1, 2, 3, 6], ids=["mid-prefill", "end of prefill", "decode", "later"])
def test_abort_between_steps_frees_everything(num_steps: int):
    engine = scheduler(max_num_batched_tokens=6)
    a = engine.add(10)
    engine.steps(num_steps)
    engine.finish(a, FinishReason.ABORT)
    engine.scheduler.check_integrity()
    assert engine.done[a].finish_reason is FinishReason.ABORT
    assert (engine.kv.num_used_blocks, engine.scheduler.num_uncomputed_tokens) == (0, 0)
    assert engine.step() == {}


@pytest.mark.parametrize("num_steps", [0, 1, 3], ids=["first chunk", "last chunk", "decode"])
def test_abort_while_the_step_runs_is_tolerated(num_steps: int):
    engine = scheduler(max_num_batched_tokens=6)
    a, b = engine.add(10), engine.add(10, max_tokens=2)
    engine.steps(num_steps)
    engine.step(abort=[a])
    assert list(engine.scheduler.requests) == [b]
    engine.run()
    assert len(engine.output(b)) == 2


def test_abort_of_a_preempted_request():
    engine = scheduler(num_blocks=4)
    a, b = engine.add(7), engine.add(7)
    engine.steps(3)
    assert engine.waiting == [b]
    engine.finish(b, FinishReason.ABORT)
    engine.scheduler.check_integrity()
    engine.step()
    assert (engine.running, engine.plan.finished) == ([a], (b,))


def test_unknown_id_is_not_finished():
    engine = scheduler()
    a = engine.add(4)
    engine.finish(a)
    assert engine.scheduler.finish(a, FinishReason.STOP) is None
    assert engine.scheduler.finish("nobody", FinishReason.ABORT) is None


def test_id_used_again_while_the_step_of_its_predecessor_runs():
    engine = scheduler()
    engine.add([1, 2, 3], name="x")
    plan = engine.scheduler.schedule()
    requests = engine.scheduler.advance(plan)
    engine.runner.execute(plan)
    engine.finish("x", FinishReason.ABORT)
    engine.add([4, 5], name="x", max_tokens=3)
    engine.scheduler.resolve(plan, requests, {"x": 77})
    assert engine.request("x").token_ids == [4, 5]
    engine.run()
    assert engine.output("x") == expected_tokens([4, 5], 3)


def test_failed_request_gains_no_token_and_teaches_the_cache_nothing():
    engine = scheduler()
    a = engine.add(range(8))
    engine.step(failing=[a])
    assert engine.done[a].finish_reason is FinishReason.ERROR
    assert engine.done[a].num_output_tokens == 0
    b = engine.add(range(8))
    assert engine.step() == {b: 8}


def test_prefix_hits_are_counted_at_first_admission():
    engine = scheduler()
    engine.add(range(10), max_tokens=1)
    engine.step()
    b = engine.add(range(8), max_tokens=2)
    assert engine.step() == {b: 4}                    # of two whole blocks only one may be taken from the cache
    assert engine.request(b).num_cached_tokens == 4
    assert (engine.scheduler.prefix_cache_queries, engine.scheduler.prefix_cache_hits) == (18, 4)


def test_load_counts_uncomputed_tokens_of_waiting_and_running():
    engine = scheduler(max_num_batched_tokens=6)
    engine.add(10)
    engine.add(5)
    assert engine.scheduler.num_uncomputed_tokens == 15
    engine.step()
    assert engine.scheduler.num_uncomputed_tokens == 9
    engine.step()                                     # a: 4, then one sampled; b: 2
    assert engine.scheduler.num_uncomputed_tokens == 4


def test_time_of_first_scheduling_comes_from_the_clock():
    engine = scheduler(max_num_seqs=1)
    engine.add(4, max_tokens=2)
    b = engine.add(4, max_tokens=2)
    engine.steps(3)
    assert engine.request(b).first_scheduled_time_s == 2.0


def test_integrity_check_sees_a_request_in_two_queues():
    engine = scheduler()
    a = engine.add(4)
    engine.step()
    engine.scheduler.waiting.append(engine.request(a))
    with pytest.raises(IntegrityError, match="wrong queue"):
        engine.scheduler.check_integrity()


def test_integrity_check_sees_a_lost_request():
    engine = scheduler()
    engine.scheduler.waiting.remove(engine.request(engine.add(4)))
    with pytest.raises(IntegrityError, match=r"\[0, 0, 0\] waiting, running and ending are not 1 requests"):
        engine.scheduler.check_integrity()

from engine.request import FinishReason
from engine.scheduling.policies.splitfuse import Splitfuse
from engine.scheduling.policy import CPU_LIMITS, Limits
from tests.engine.scheduling.driver import scheduler


def test_defaults_are_those_of_fastgen():
    assert Splitfuse(Splitfuse.Parameters(), CPU_LIMITS).limits == Limits(768, 512)


def test_every_step_holds_exactly_the_budget_as_long_as_there_is_work():
    engine = scheduler("splitfuse", token_budget=10)
    for length in (23, 3, 4, 11, 2, 17):
        engine.add(length)
    sizes = [sum(step.values()) for step in engine.steps(10)]
    assert sizes == [10, 10, 10, 10, 10, 10, 10, 10, 6, 6]    # then nothing but six decodes is left


def test_long_prompts_are_split_and_short_ones_fused_beside_all_decodes():
    engine = scheduler("splitfuse", token_budget=10)
    a = engine.add(2)
    engine.step()
    b, c, d = engine.add(14), engine.add(2), engine.add(9)
    assert engine.steps(4) == [
        {a: 1, b: 9},
        {a: 1, b: 5, c: 2, d: 2},
        {a: 1, b: 1, c: 1, d: 7},
        {a: 1, b: 1, c: 1, d: 1},
    ]


def test_prompt_starts_only_if_all_its_blocks_fit_and_gets_them_at_once():
    engine = scheduler("splitfuse", token_budget=4, num_blocks=6)
    a = engine.add(12, max_tokens=2)
    b, c = engine.add(16), engine.add(4)               # c would fit, but is behind b
    assert engine.step() == {a: 4}
    assert len(engine.block_table(a)) == 3
    assert engine.steps(3) == [{a: 4}, {a: 4}, {a: 1}]
    assert engine.step() == {b: 4}
    assert engine.waiting == [c]
    assert engine.kv.num_used_blocks == 4


def test_sequences_are_limited_and_never_more_than_tokens():
    engine = scheduler("splitfuse", max_ragged_sequence_count=2)
    names = [engine.add(3, max_tokens=2) for _ in range(3)]
    assert [list(step) for step in engine.steps(3)] == [names[:2], names[:2], names[2:]]
    engine = scheduler("splitfuse", token_budget=2)
    names = [engine.add(1, max_tokens=3) for _ in range(3)]
    assert [list(step) for step in engine.steps(4)] == [names[:2], names[:2], names[:2], names[2:]]


def test_last_holder_is_flushed_though_its_prompt_is_in_the_making():
    engine = scheduler("splitfuse", token_budget=8, num_blocks=5)
    a = engine.add(7, max_tokens=9)
    engine.step()
    b = engine.add(12)
    assert engine.step() == {a: 1, b: 7}               # all five blocks are given
    assert engine.step() == {a: 1}                     # a needs a third; b loses its prompt, and may not start at once
    assert (engine.waiting, engine.plan.preempted) == ([b], (b,))
    assert engine.scheduler.num_preemptions == 1


def test_flushed_request_comes_back_before_others_with_its_tokens():
    engine = scheduler("splitfuse", token_budget=16, num_blocks=4, prefix_caching=False)
    a, b = engine.add(7, max_tokens=3), engine.add(8, max_tokens=3)
    assert engine.steps(2) == [{a: 7, b: 8}, {a: 1}]
    engine.add(1)
    assert engine.steps(2) == [{a: 1}, {b: 9, "c": 1}]
    engine.finish("c", FinishReason.ABORT)
    engine.run()
    assert len(engine.output(b)) == 3

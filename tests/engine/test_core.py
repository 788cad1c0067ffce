from functools import partial

import pytest

from engine.core import EngineCore
from engine.errors import ContextTooLong, InvalidRequest, QueueFull, RequestTooLarge
from engine.outputs import RequestOutput
from engine.request import FinishReason, GenerationRequest
from tests.engine import builders
from tests.helpers import HashRunner, expected_tokens, generation, next_token


@pytest.fixture(params=[False, True], ids=["in turn", "overlapped"])
def build_core(request):
    """Whether steps overlap must not be seen from outside."""
    return partial(builders.build_core, overlap=request.param)


def run(core: EngineCore, *requests: GenerationRequest) -> dict[str, RequestOutput]:
    """Serve `requests` to their ends; outputs merged by request id."""
    for request in requests:
        core.add_request(request)
    merged: dict[str, RequestOutput] = {}
    while core.has_work:
        for output in core.step():
            earlier = merged.get(output.request_id)
            merged[output.request_id] = output if earlier is None else earlier.then(output)
    return merged


def test_tokens_are_those_of_the_request_alone_under_chunking_and_preemption(build_core):
    core, runner = build_core(num_blocks=12, block_size=4, max_num_batched_tokens=7)
    prompts = {f"r{i}": [i + 1] * (3 + 2 * i) for i in range(6)}
    outputs = run(core, *(generation(name, prompt, 12) for name, prompt in prompts.items()))
    assert core.stats().num_preemptions > 0
    for name, prompt in prompts.items():
        assert list(outputs[name].token_ids) == expected_tokens(prompt, 12)
        assert outputs[name].finish_reason is FinishReason.LENGTH
    assert core.stats().kv_blocks_used == 0
    assert not runner.tokens or core.step() == []


def test_lo_06_end_of_sequence_ends_with_stop_and_is_not_text(build_core):
    end = next_token([5, 6])
    core, _ = build_core(eos_token_ids=frozenset({end}))
    (output,) = run(core, generation("a", [5, 6])).values()
    assert (output.token_ids, output.text, output.finish_reason) == ((end,), "", FinishReason.STOP)


def test_lo_06_ignore_eos_goes_on_to_max_tokens(build_core):
    end = next_token([5, 6])
    core, _ = build_core(eos_token_ids=frozenset({end}))
    (output,) = run(core, generation("a", [5, 6], 4, {"ignore_eos": True})).values()
    assert (len(output.token_ids), output.finish_reason) == (4, FinishReason.LENGTH)


def test_stop_token_names_itself(build_core):
    second = expected_tokens([5], 2)[1]
    core, _ = build_core()
    (output,) = run(core, generation("a", [5], 9, {"stop_token_ids": (second,)})).values()
    assert (len(output.token_ids), output.stop_reason, output.finish_reason) == (2, second, FinishReason.STOP)


def test_context_is_an_end_of_length(build_core):
    core, _ = build_core(max_model_len=8)
    (output,) = run(core, generation("a", [1, 2, 3], 100)).values()
    assert (output.num_output_tokens, output.finish_reason) == (5, FinishReason.LENGTH)


def test_pool_is_an_end_of_length_and_never_a_hang(build_core):
    core, _ = build_core(num_blocks=3, block_size=4)
    (output,) = run(core, generation("a", [1, 2, 3], 100)).values()
    assert output.finish_reason is FinishReason.LENGTH
    assert 9 <= output.num_output_tokens <= 10                      # 12 slots; the last token needs none


def test_prompt_that_can_never_fit_is_refused_and_blocks_nobody(build_core):
    core, _ = build_core(num_blocks=4, block_size=4, max_model_len=64)
    with pytest.raises(RequestTooLarge, match="16"):
        core.add_request(generation("large", [1] * 16))
    outputs = run(core, generation("small", [1], 2))
    assert outputs["small"].finish_reason is FinishReason.LENGTH


def test_prompt_beyond_the_context_is_refused_with_both_numbers(build_core):
    core, _ = build_core(max_model_len=8)
    with pytest.raises(ContextTooLong, match=r"9.*8"):
        core.add_request(generation("a", [1] * 9))


@pytest.mark.parametrize("prompt", [[], [-1], [1000]])
def test_prompt_without_or_with_foreign_tokens_is_refused(build_core, prompt):
    core, _ = build_core(vocab_size=1000)
    with pytest.raises(InvalidRequest) as caught:
        core.add_request(generation("a", prompt))
    assert caught.value.param == "prompt"


def test_waiting_requests_are_bounded(build_core):
    core, _ = build_core(max_num_waiting=2)
    for name in ("a", "b"):
        core.add_request(generation(name, [1]))
    with pytest.raises(QueueFull):
        core.add_request(generation("c", [1]))


@pytest.mark.parametrize("steps", [0, 1, 2, 6], ids=["waiting", "mid-prefill", "mid-prefill-2", "decoding"])
def test_abort_at_any_stage_frees_everything_and_leaves_the_other_alone(build_core, steps):
    core, _ = build_core(max_num_batched_tokens=4)
    core.add_request(generation("gone", [3] * 10))
    core.add_request(generation("stays", [7, 8], 6))
    said = [output for _ in range(steps) for output in core.step()]
    core.abort("gone")
    last = core.take_outputs()
    assert [(o.request_id, o.finish_reason) for o in last] == [("gone", FinishReason.ABORT)]
    core.check_integrity()
    while core.has_work:
        said += core.step()
    assert [t for o in said if o.request_id == "stays" for t in o.token_ids] == expected_tokens([7, 8], 6)
    assert core.stats().kv_blocks_used == 0


def test_abort_of_an_unknown_request_is_nothing(build_core):
    core, _ = build_core()
    core.abort("never")
    assert core.take_outputs() == []


def test_drained_request_resumes_elsewhere_with_the_same_tokens(build_core):
    first, _ = build_core()
    first.add_request(generation("a", [4, 5, 6], 10))
    said = [output for _ in range(4) for output in first.step()]
    (continuation,) = first.drain()
    said += first.take_outputs()
    assert not first.has_work
    second, _ = build_core()
    outputs = run(second, continuation.request)
    assert [t for o in said for t in o.token_ids] + list(outputs["a"].token_ids) == expected_tokens([4, 5, 6], 10)
    assert outputs["a"].num_output_tokens == 10


def test_text_held_back_at_a_drain_is_said_once_and_elsewhere(build_core):
    whole = "".join(chr(97 + token % 26) for token in expected_tokens([4, 5, 6], 8))
    stop = {"stop": (whole[3] + whole[4:6].swapcase(),)}          # holds back the fourth letter, and never matches
    first, _ = build_core()
    first.add_request(generation("a", [4, 5, 6], 8, stop))
    said = [output for _ in range(4) for output in first.step()]
    (continuation,) = first.drain()
    said += first.take_outputs()
    assert "".join(output.text for output in said) == whole[:3]
    second, _ = build_core()
    assert run(second, continuation.request)["a"].text == whole[3:]


def test_row_that_fails_ends_alone(build_core):
    class OneBadRow(HashRunner):
        def execute(self, plan):
            result = super().execute(plan)
            if "bad" not in result.sampled:
                return result
            sampled = {name: token for name, token in result.sampled.items() if name != "bad"}
            return type(result)(sampled, errors={"bad": "logits are not finite"})

    core, _ = build_core(runner=OneBadRow(64, 4))
    outputs = run(core, generation("bad", [1]), generation("good", [2], 3))
    assert (outputs["bad"].finish_reason, outputs["bad"].error) == (FinishReason.ERROR, "logits are not finite")
    assert list(outputs["good"].token_ids) == expected_tokens([2], 3)


def test_stats_count_what_happened(build_core):
    core, _ = build_core()
    run(core, generation("a", [1, 2, 3], 4), generation("b", [5], 2))
    stats = core.stats()
    assert (stats.num_prompt_tokens, stats.num_generated_tokens, stats.num_finished) == (4, 6, {"length": 2})
    assert stats.ttft_s is not None and sum(stats.ttft_s.counts) == 2
    assert stats.itl_s is not None and sum(stats.itl_s.counts) == 4
    assert stats.num_requests_running == stats.num_requests_waiting == 0

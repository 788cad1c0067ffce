"""Overlap: the next step is under way before the last one's tokens are known, and nobody can tell."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.core import EngineCore
from engine.outputs import RequestOutput
from engine.request import FinishReason
from engine.scheduling.plan import PendingStep, StepPlan, StepResult
from tests.engine.builders import build_core
from tests.helpers import HashRunner, expected_tokens, generation, next_token


@dataclass
class Recorded:
    """A step that is noted when it is awaited."""

    number: int
    pending: PendingStep
    log: list[str]

    def result(self) -> StepResult:
        self.log.append(f"result {self.number}")
        return self.pending.result()


class RecordingRunner(HashRunner):
    def __init__(self, num_blocks: int = 64, block_size: int = 4) -> None:
        super().__init__(num_blocks, block_size)
        self.log: list[str] = []
        self._numbers = self._count()

    def submit(self, plan: StepPlan) -> PendingStep:
        number = next(self._numbers)
        self.log.append(f"submit {number}")
        return Recorded(number, super().submit(plan), self.log)

    def _count(self) -> Iterator[int]:
        number = 0
        while True:
            yield number
            number += 1


def run(core: EngineCore) -> list[RequestOutput]:
    outputs: list[RequestOutput] = []
    while core.has_work:
        outputs += core.step()
    return outputs


def tokens(outputs: list[RequestOutput], request_id: str = "a") -> list[int]:
    return [token for output in outputs if output.request_id == request_id for token in output.token_ids]


@pytest.mark.parametrize(
    ("overlap", "log"),
    [
        (False, ["submit 0", "result 0", "submit 1", "result 1", "submit 2", "result 2"]),
        (True, ["submit 0", "submit 1", "result 0", "submit 2", "result 1", "result 2"]),
    ],
)
def test_a_step_is_submitted_before_the_last_one_is_awaited(overlap, log):
    runner = RecordingRunner()
    core, _ = build_core(runner=runner, overlap=overlap)
    core.add_request(generation("a", [1, 2], 3))
    assert tokens(run(core)) == expected_tokens([1, 2], 3)
    assert runner.log == log                                        # and no step for tokens beyond max_tokens


@pytest.mark.parametrize("overlap", [False, True])
def test_a_stop_is_seen_one_step_late_and_what_was_computed_is_dropped(overlap):
    ending = next_token([5, 6])
    core, runner = build_core(eos_token_ids=frozenset({ending}), overlap=overlap)
    core.add_request(generation("a", [5, 6]))
    outputs = run(core)
    assert (tokens(outputs), outputs[-1].finish_reason) == ([ending], FinishReason.STOP)
    assert len(runner.plans) == (2 if overlap else 1)
    assert core.stats().kv_blocks_used == 0


def test_an_id_used_again_gains_nothing_from_its_predecessors_step():
    ending = next_token([5, 6])
    core, _ = build_core(eos_token_ids=frozenset({ending}), overlap=True)
    core.add_request(generation("a", [5, 6]))
    outputs = core.step() + core.step()                             # the step after the end is in flight
    assert outputs[-1].finish_reason is FinishReason.STOP
    core.add_request(generation("a", [7, 8], 3, {"ignore_eos": True}))
    assert tokens(run(core)) == expected_tokens([7, 8], 3)


def test_drained_requests_take_along_what_was_in_flight():
    core, _ = build_core(overlap=True)
    core.add_request(generation("a", [4, 5, 6], 10))
    said = core.step() + core.step() + core.step()
    (continuation,) = core.drain()
    said += core.take_outputs()
    assert continuation.request.resume_token_ids == tuple(expected_tokens([4, 5, 6], 3)) == tuple(tokens(said))


def test_a_request_preempted_with_a_token_in_flight_loses_nothing():
    core, _ = build_core(num_blocks=6, block_size=2, overlap=True, watermark=0.0)
    for name, prompt in (("a", [1, 2, 3]), ("b", [4, 5, 6])):
        core.add_request(generation(name, prompt, 6))
    outputs = run(core)
    assert core.stats().num_preemptions > 0
    for name, prompt in (("a", [1, 2, 3]), ("b", [4, 5, 6])):
        assert tokens(outputs, name) == expected_tokens(prompt, 6)


requests = st.tuples(
    st.lists(st.integers(0, 3), min_size=1, max_size=9),            # prompt
    st.integers(0, 9),                                              # max_tokens
    st.integers(0, 12),                                             # arrives before this step
    st.one_of(st.none(), st.integers(1, 25)),                       # is aborted before this step
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(requests, min_size=1, max_size=8), st.integers(5, 12), st.integers(1, 9))
def test_outputs_are_those_of_steps_in_turn(traffic, num_blocks, budget):
    """Tokens, text, ends, usage; an abort may come a token earlier or later, but never a wrong token."""
    seen = []
    for overlap in (False, True):
        core, _ = build_core(
            num_blocks=num_blocks, block_size=3, overlap=overlap, max_num_batched_tokens=budget, vocab_size=7,
            eos_token_ids=frozenset({6}), runner=HashRunner(num_blocks, 3, lambda ids: next_token(ids, 7)),
        )  # fmt: skip
        merged: dict[str, RequestOutput] = {}
        number = 0
        while core.has_work or number <= 25:
            said = []
            for name, (prompt, max_tokens, arrival, abort) in enumerate(traffic):
                if arrival == number:
                    core.add_request(generation(str(name), prompt, max_tokens))
                if abort == number:
                    core.abort(str(name))
            said += core.take_outputs() + core.step()
            for output in said:
                earlier = merged.get(output.request_id)
                merged[output.request_id] = output if earlier is None else earlier.then(output)
            number += 1
        assert core.stats().kv_blocks_used == 0
        seen.append(merged)
    in_turn, overlapped = seen
    assert in_turn.keys() == overlapped.keys()
    for name, output in in_turn.items():
        other = overlapped[name]
        if FinishReason.ABORT in (output.finish_reason, other.finish_reason):
            shorter = min(len(output.token_ids), len(other.token_ids))
            assert output.token_ids[:shorter] == other.token_ids[:shorter]
        else:
            fields = ("token_ids", "text", "finish_reason", "stop_reason", "num_output_tokens", "num_prompt_tokens")
            assert [getattr(output, field) for field in fields] == [getattr(other, field) for field in fields]

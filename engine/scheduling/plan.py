"""StepPlan and StepResult: the two frozen values between scheduler and runner; PendingStep: a result on its way."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from engine.outputs import TokenLogprobs
from engine.request import GenerationRequest


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one engine step computes: decided by a policy, carried out by the runner, applied by the update.

    For each request the step computes the half-open token range [start, start + num_scheduled_tokens).
    Everything the runner needs is here: it keeps its own copy of each live request's tokens, begun by `new` and
    grown by the tokens it samples, and never reads scheduler state.
    """

    num_scheduled_tokens: Mapping[str, int]                # request_id -> new tokens this step, in batch order
    start: Mapping[str, int]                               # request_id -> tokens already in the cache
    block_tables: Mapping[str, tuple[int, ...]]            # request_id -> block ids covering every scheduled position
    sampling: tuple[str, ...] = ()                         # requests whose last known token is computed: they sample
    new: Mapping[str, tuple[GenerationRequest, tuple[int, ...]]] = field(default_factory=dict)
    #                                                        request_id -> (request, all known tokens); first step only
    padding: Mapping[str, int] = field(default_factory=dict)   # request_id -> rows computed and discarded
    preempted: tuple[str, ...] = ()                        # lost their blocks; their tokens stay known to the runner
    finished: tuple[str, ...] = ()                         # since the last plan: the runner forgets them

    @property
    def num_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


@dataclass(frozen=True, slots=True)
class StepResult:
    """What the runner found: one sampled token for each request of `StepPlan.sampling`, unless it failed."""

    sampled: Mapping[str, int]                             # request_id -> token id
    logprobs: Mapping[str, TokenLogprobs] = field(default_factory=dict)
    prompt_logprobs: Mapping[str, tuple[TokenLogprobs, ...]] = field(default_factory=dict)
    #                                                        request_id -> entries for prompt positions
    #                                                        [start + 1, start + scheduled + 1), cut at the prompt's end
    errors: Mapping[str, str] = field(default_factory=dict)    # request_id -> why this request alone failed
    complete: frozenset[str] = frozenset()                 # their grammar allows nothing more, not even an end token
    times_s: Mapping[str, float] = field(default_factory=dict)  # prepare, forward, sample


class PendingStep(Protocol):
    """A plan under way on a device."""

    def result(self) -> StepResult:
        """Waits for the step; the same value at every call."""


@dataclass(frozen=True, slots=True)
class Done:
    """A step that was over when it was submitted."""

    value: StepResult

    def result(self) -> StepResult:
        return self.value

"""Batches of whole requests, padded or packed: what the policies share that batched requests before iterations.

Such a batch begins when nothing runs and ends with its longest member; nobody joins it. Where it is padded, every
member has as many rows as the longest in the step that computes the prompts, and one row in every step after it,
whether it has ended or not. So a batch of n computes exactly n × (longest prompt + longest output - 1) rows.
"""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from engine.request import Request
from engine.scheduling.policy import Limits, Policy
from engine.scheduling.reservation import ReservingParameters, reserved_tokens
from engine.scheduling.step_builder import StepBuilder

_PROMPT_ROWS_OF_A_MEMBER = 512


class BatchParameters(ReservingParameters):
    batch_size: int = Field(8, gt=0, description="requests in one batch")
    max_prompt_rows: int | None = Field(
        None,
        gt=0,
        description="rows in the step that computes the prompts, padding included; a batch with more is cut;"
        " default: 512 for each member, or the device's step if that is more",
    )


class RequestBatches(Policy):
    """A policy of such batches. Which requests make the next one, its `next_batch` says."""

    keeps_seats = True
    whole_prompts = True
    pads: ClassVar[bool] = True

    def __init__(self, parameters: BatchParameters, limits: Limits) -> None:
        self.batch_size = parameters.batch_size
        self.max_prompt_rows = parameters.max_prompt_rows or max(
            limits.max_num_batched_tokens, _PROMPT_ROWS_OF_A_MEMBER * self.batch_size
        )
        self.reserve = parameters.reserve
        super().__init__(parameters, Limits(max(self.max_prompt_rows, self.batch_size), self.batch_size))

    def next_batch(self, step: StepBuilder) -> Sequence[Request]:
        """Up to `batch_size` of the waiting requests, of which there are some; none, with `wait_until_s`: not yet."""
        raise NotImplementedError

    def plan(self, step: StepBuilder) -> None:
        if step.num_running or next(step.seats, None) is not None:
            self._decode(step)
        elif step.num_waiting:
            self._begin(step, self.next_batch(step))

    def _begin(self, step: StepBuilder, members: Sequence[Request]) -> None:
        members = self._fitting(step, members)
        longest = _longest(members)
        for request in members:
            if step.reserve(request, self._slots(step, request, longest)):
                step.schedule(request, request.num_tokens)
        if self.pads:
            num_rows = max(step.num_scheduled_tokens.values(), default=0)
            for request in step.admitted:
                num_padding = num_rows - step.num_scheduled_tokens[request.request_id]
                if num_padding:
                    step.pad(request, num_padding)

    def _decode(self, step: StepBuilder) -> None:
        for request in step.running:
            step.schedule(request, 1)
        if self.pads and len(step):
            for request in step.seats:
                step.pad(request, 1)

    def _fitting(self, step: StepBuilder, members: Sequence[Request]) -> Sequence[Request]:
        """As many of `members`, from the first, as the pool and the rows of a step hold together. One always is."""
        for count in range(len(members), 1, -1):
            chosen = members[:count]
            longest = _longest(chosen)
            num_rows = count * longest if self.pads else sum(request.num_tokens for request in chosen)
            num_blocks = sum(step.num_blocks_for(self._slots(step, request, longest)) for request in chosen)
            if num_rows <= self.max_prompt_rows and num_blocks <= step.num_available_blocks:
                return chosen
        return members[:1]

    def _slots(self, step: StepBuilder, request: Request, longest: int) -> int:
        """Slots of a member whose batch has a `longest` prompt; its padding takes slots like tokens."""
        padding = longest - request.num_tokens if self.pads else 0
        return reserved_tokens(step, request, self.reserve) + padding


def _longest(requests: Sequence[Request]) -> int:
    return max((request.num_tokens for request in requests), default=0)

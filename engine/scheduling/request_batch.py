"""Batches of whole requests, padded or packed: what the policies share that batched requests before iterations.

Such a batch begins when nothing runs and ends with its longest member; nobody joins it. Where it is padded, every
member has as many rows as the longest in the step that computes the prompts, and one row in every step after it,
whether it has ended or not. So a batch of n computes exactly n × (longest prompt + longest output - 1) rows.
"""

from collections.abc import Sequence

from pydantic import Field

from engine.request import Request
from engine.scheduling.reservation import Reserve, ReservingParameters, reserved_tokens
from engine.scheduling.step_builder import StepBuilder


class BatchParameters(ReservingParameters):
    batch_size: int = Field(8, gt=0, description="requests in one batch")


def is_over(step: StepBuilder) -> bool:
    """Whether the last batch has ended, its seats included, so that the next may begin."""
    return step.num_running == 0 and next(step.seats, None) is None


def begin(step: StepBuilder, members: Sequence[Request], reserve: Reserve, *, padded: bool) -> None:
    """Computes the prompts of `members` in one step, or of as many of them, from the first, as the pool can hold."""
    members = _fitting(step, members, reserve, padded=padded)
    longest = longest_prompt(members) if padded else 0
    for request in members:
        if step.reserve(request, _slots(step, request, reserve, longest)):
            step.schedule(request, request.num_tokens)
    if padded:
        num_rows = max(step.num_scheduled_tokens.values(), default=0)
        for request in step.admitted:
            num_padding = num_rows - step.num_scheduled_tokens[request.request_id]
            if num_padding:
                step.pad(request, num_padding)


def decode(step: StepBuilder, *, padded: bool) -> None:
    """One more token of every member; of a finished one, where the batch is padded, the row that its seat costs."""
    for request in step.running:
        step.schedule(request, 1)
    if padded and len(step):
        for request in step.seats:
            step.pad(request, 1)


def longest_prompt(requests: Sequence[Request]) -> int:
    return max((request.num_tokens for request in requests), default=0)


def _fitting(step: StepBuilder, members: Sequence[Request], reserve: Reserve, *, padded: bool) -> Sequence[Request]:
    """As many of `members`, from the first, as have room in the pool together. The first has, if alone."""
    for count in range(len(members), 1, -1):
        chosen = members[:count]
        longest = longest_prompt(chosen) if padded else 0
        num_blocks = sum(step.num_blocks_for(_slots(step, request, reserve, longest)) for request in chosen)
        if num_blocks <= step.num_available_blocks:
            return chosen
    return members[:1]


def _slots(step: StepBuilder, request: Request, reserve: Reserve, longest: int) -> int:
    """Slots of a member; padding before its first output token takes slots like tokens."""
    return reserved_tokens(step, request, reserve) + max(longest - request.num_tokens, 0)

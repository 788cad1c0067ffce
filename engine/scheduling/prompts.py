"""Prompts in the making: what policies ask about them, and how those already begun go on."""

from engine.request import RUNNING, Request
from engine.scheduling.step_builder import StepBuilder


def is_prefilling(request: Request) -> bool:
    """Whether a running request has more to compute than its newest token: prompt, or output lost by a preemption."""
    return request.num_uncomputed_tokens > 1 or request.num_tokens == request.num_prompt_tokens


def num_tokens_left(step: StepBuilder, request: Request) -> int:
    """Tokens that `request`, running or waiting, has to compute before it samples again; cached ones are not."""
    if request.status is RUNNING:
        return request.num_uncomputed_tokens
    return request.num_tokens - step.num_cached_tokens(request)


def continue_prompts(step: StepBuilder, budget: int) -> None:
    """Computes prompts begun in earlier steps, in order of arrival, until the step holds `budget` tokens.

    For policies that give a request the blocks of its whole prompt when it starts: these prompts lack none.
    """
    for request in step.running:
        left = budget - step.num_tokens
        if left == 0:
            return
        if is_prefilling(request):
            step.schedule(request, left)

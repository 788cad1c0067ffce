"""Shortage: who gives up its blocks, in policies that hand out blocks as they are needed."""

from collections.abc import Callable

from engine.request import Request
from engine.scheduling.step_builder import StepBuilder


def newest(step: StepBuilder) -> Request | None:
    return step.newest


def schedule_or_preempt(
    step: StepBuilder,
    request: Request,
    num_tokens: int,
    choose: Callable[[StepBuilder], Request | None] = newest,
) -> bool:
    """Computes `num_tokens` more of a running request, at the expense of those that `choose` picks, one by one.

    False if the request itself was picked: it is preempted then.
    """
    while not step.schedule(request, num_tokens):
        victim = choose(step) or request
        step.preempt(victim)
        if victim is request:
            return False
    return True


def decode_all(step: StepBuilder, choose: Callable[[StepBuilder], Request | None] = newest) -> None:
    """One more token for each running request that can have a block, where none is still computing its prompt."""
    for request in step.running:
        schedule_or_preempt(step, request, 1, choose)

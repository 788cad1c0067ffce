"""ORCA (Yu et al., OSDI 2022): iteration-level scheduling with selective batching.

Admission: at every iteration, first come, first served: the oldest waiting request starts if fewer than
`max_num_seqs` run and its maximum has room.
Composition: whole prompts beside decodes in one step: one prompt of any length, or several that keep the device's
bound.
Reservation: prompt and max_tokens at once, or the model's context with `reserve: max_model_len`, as in the paper's
experiments. Shortage: cannot happen.
Starvation: nobody overtakes; the head of the queue starts as soon as its maximum fits.
"""

from pydantic import Field

from engine.request import Request
from engine.scheduling.policy import Limits, Policy
from engine.scheduling.reservation import ReservingParameters, reserved_tokens
from engine.scheduling.step_builder import StepBuilder


class Orca(Policy):
    whole_prompts = True

    class Parameters(ReservingParameters):
        max_num_seqs: int | None = Field(None, gt=0, description="requests in one iteration; default: the device's")

    def __init__(self, parameters: Parameters, limits: Limits) -> None:
        self.max_num_seqs = parameters.max_num_seqs or limits.max_num_seqs
        self.reserve = parameters.reserve
        super().__init__(parameters, Limits(max(limits.max_num_batched_tokens, self.max_num_seqs), self.max_num_seqs))

    def plan(self, step: StepBuilder) -> None:
        for request in step.running:
            step.schedule(request, 1)
        for request in step.waiting:
            if step.num_running >= self.max_num_seqs or not self._has_rows(step, request):
                return
            if not step.reserve(request, reserved_tokens(step, request, self.reserve)):
                return                                 # first come, first served: nobody overtakes
            step.schedule(request, request.num_tokens)

    def _has_rows(self, step: StepBuilder, request: Request) -> bool:
        """Whether the device's step takes a prompt more; one always may start, however long."""
        return not step.admitted or step.num_tokens + request.num_tokens <= self.limits.max_num_batched_tokens

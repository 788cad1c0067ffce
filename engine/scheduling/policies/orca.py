"""ORCA (Yu et al., OSDI 2022): iteration-level scheduling with selective batching.

Admission: at every iteration, first come, first served: the oldest waiting request starts if fewer than
`max_num_seqs` run and its maximum has room.
Composition: whole prompts beside decodes in one step.
Reservation: prompt and max_tokens at once, or the model's context with `reserve: max_model_len`, as in the paper's
experiments. Shortage: cannot happen.
Starvation: nobody overtakes; the head of the queue starts as soon as its maximum fits.
"""

from pydantic import Field

from engine.scheduling.policy import Limits, Policy
from engine.scheduling.reservation import ReservingParameters, reserved_tokens
from engine.scheduling.step_builder import StepBuilder


class Orca(Policy):
    class Parameters(ReservingParameters):
        max_num_seqs: int | None = Field(None, gt=0, description="requests in one iteration; default: the device's")

    def __init__(self, parameters: Parameters, limits: Limits) -> None:
        super().__init__(parameters, limits)
        self.max_num_seqs = parameters.max_num_seqs or limits.max_num_seqs
        self.reserve = parameters.reserve

    def plan(self, step: StepBuilder) -> None:
        for request in step.running:
            step.schedule(request, 1)
        for request in step.waiting:
            if step.num_running >= self.max_num_seqs:
                return
            if not step.reserve(request, reserved_tokens(step, request, self.reserve)):
                return                                 # first come, first served: nobody overtakes
            step.schedule(request, request.num_tokens)

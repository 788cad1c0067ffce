"""Request-level dynamic batching (Triton Inference Server's dynamic batcher): as static, but does not wait long.

Admission: only when the last batch has ended; then whatever waits, up to `batch_size`, as soon as so many wait or
the oldest of them has waited for `max_wait_ms`.
Composition, reservation and shortage: as static.
Starvation: first come, first served; the head of the queue is in the next batch, `max_wait_ms` after its arrival or
when the last batch ends, whichever is later.
"""

from itertools import islice

from pydantic import Field

from engine.scheduling import request_batch
from engine.scheduling.policy import Limits, Policy
from engine.scheduling.request_batch import BatchParameters
from engine.scheduling.step_builder import StepBuilder


class StaticImpatient(Policy):
    class Parameters(BatchParameters):
        max_wait_ms: float = Field(
            100, ge=0, allow_inf_nan=False, description="that a request waits for others to fill an idle batch"
        )

    keeps_seats = True

    def __init__(self, parameters: Parameters, limits: Limits) -> None:
        super().__init__(parameters, limits)
        self.batch_size = parameters.batch_size
        self.max_wait_s = parameters.max_wait_ms / 1000
        self.reserve = parameters.reserve

    def plan(self, step: StepBuilder) -> None:
        if not request_batch.is_over(step):
            request_batch.decode(step, padded=True)
        elif self._may_begin(step):
            members = list(islice(step.waiting, self.batch_size))
            request_batch.begin(step, members, self.reserve, padded=True)

    def _may_begin(self, step: StepBuilder) -> bool:
        if not 0 < step.num_waiting < self.batch_size:
            return True
        patience_ends_s = min(request.arrival_time_s for request in step.waiting) + self.max_wait_s
        if step.now_s < patience_ends_s:
            step.wait_until_s = patience_ends_s
            return False
        return True

"""Request-level dynamic batching (Triton Inference Server's dynamic batcher): as static, but does not wait long.

Admission: only when the last batch has ended; then whatever waits, up to `batch_size`, as soon as so many wait or
the oldest of them has waited for `max_wait_ms`.
Composition, reservation and shortage: as static.
Starvation: first come, first served; the head of the queue is in the next batch, `max_wait_ms` after its arrival or
when the last batch ends, whichever is later.
"""

from collections.abc import Sequence
from itertools import islice

from pydantic import Field

from engine.request import Request
from engine.scheduling.policy import Limits
from engine.scheduling.request_batch import BatchParameters, RequestBatches
from engine.scheduling.step_builder import StepBuilder


class StaticImpatient(RequestBatches):
    class Parameters(BatchParameters):
        max_wait_ms: float = Field(
            100, ge=0, allow_inf_nan=False, description="that a request waits for others to fill an idle batch"
        )

    def __init__(self, parameters: Parameters, limits: Limits) -> None:
        super().__init__(parameters, limits)
        self.max_wait_s = parameters.max_wait_ms / 1000

    def next_batch(self, step: StepBuilder) -> Sequence[Request]:
        members = list(islice(step.waiting, self.batch_size))
        if len(members) < self.batch_size:
            patience_ends_s = min(request.arrival_time_s for request in members) + self.max_wait_s
            if step.now_s < patience_ends_s:
                step.wait_until_s = patience_ends_s
                return []
        return members

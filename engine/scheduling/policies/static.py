"""Static batching (Hugging Face Pipelines): a batch is full before it starts, and ends with its longest member.

Admission: only when the last batch has ended; then the `batch_size` oldest requests, as soon as so many wait, or all
that wait once the queue has ended: nobody has come for `queue_end_ms`. A batch that the pool cannot hold is cut.
Composition: one step computes all prompts, padded to the longest; each step after it gives every member one row, and
a member that has finished keeps its seat, its slots and its row to the end of the batch.
Reservation: prompt and max_tokens at once, and slots for the padding. Shortage: cannot happen.
Starvation: first come, first served; the head of the queue is in the next batch, which starts `queue_end_ms` after
the last arrival at the latest.
"""

from itertools import islice
from typing import ClassVar

from pydantic import Field

from engine.scheduling import request_batch
from engine.scheduling.policy import Limits, Policy
from engine.scheduling.request_batch import BatchParameters
from engine.scheduling.step_builder import StepBuilder


class Static(Policy):
    class Parameters(BatchParameters):
        queue_end_ms: float = Field(
            100, ge=0, allow_inf_nan=False, description="without an arrival, until a batch starts that is not full"
        )

    keeps_seats = True
    pads: ClassVar[bool] = True

    def __init__(self, parameters: Parameters, limits: Limits) -> None:
        super().__init__(parameters, limits)
        self.batch_size = parameters.batch_size
        self.queue_end_s = parameters.queue_end_ms / 1000
        self.reserve = parameters.reserve

    def plan(self, step: StepBuilder) -> None:
        if not request_batch.is_over(step):
            request_batch.decode(step, padded=self.pads)
        elif self._may_begin(step):
            members = list(islice(step.waiting, self.batch_size))
            request_batch.begin(step, members, self.reserve, padded=self.pads)

    def _may_begin(self, step: StepBuilder) -> bool:
        if not 0 < step.num_waiting < self.batch_size:
            return True
        queue_ends_s = max(request.arrival_time_s for request in step.waiting) + self.queue_end_s
        if step.now_s < queue_ends_s:
            step.wait_until_s = queue_ends_s
            return False
        return True

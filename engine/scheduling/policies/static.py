"""Static batching (Hugging Face Pipelines): a batch is full before it starts, and ends with its longest member.

Admission: only when the last batch has ended; then the `batch_size` oldest requests, as soon as so many wait, or all
that wait once the queue has ended: nobody has come for `queue_end_ms`. A batch that the pool or
`max_prompt_rows` cannot hold is cut.
Composition: one step computes all prompts, padded to the longest; each step after it gives every member one row, and
a member that has finished keeps its seat, its slots and its row to the end of the batch.
Reservation: prompt and max_tokens at once, and slots for the padding. Shortage: cannot happen.
Starvation: first come, first served; the head of the queue is in the next batch, which starts `queue_end_ms` after
the last arrival at the latest.
"""

from collections.abc import Sequence
from itertools import islice

from pydantic import Field

from engine.request import Request
from engine.scheduling.policy import Limits
from engine.scheduling.request_batch import BatchParameters, RequestBatches
from engine.scheduling.step_builder import StepBuilder


class Static(RequestBatches):
    class Parameters(BatchParameters):
        queue_end_ms: float = Field(
            100, ge=0, allow_inf_nan=False, description="without an arrival, until a batch starts that is not full"
        )

    def __init__(self, parameters: Parameters, limits: Limits) -> None:
        super().__init__(parameters, limits)
        self.queue_end_s = parameters.queue_end_ms / 1000

    def next_batch(self, step: StepBuilder) -> Sequence[Request]:
        members = list(islice(step.waiting, self.batch_size))
        if len(members) < self.batch_size:
            queue_ends_s = max(request.arrival_time_s for request in members) + self.queue_end_s
            if step.now_s < queue_ends_s:
                step.wait_until_s = queue_ends_s
                return []
        return members

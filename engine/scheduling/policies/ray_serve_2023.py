"""The continuous batcher of 2023 on Ray Serve: text-generation-inference's rule in Python, without its promise.

It was written for the benchmark that compared static with continuous batching (Anyscale, 2023; there with
`max_waiting_tokens` 7), and went on in Aviary.

Admission: as tgi, within a quota: prompts and max_tokens of all that run are counted against
`max_batch_total_tokens`, but nothing is set aside for them. A request larger than the quota runs alone. Prompts in
one step had no bound but the quota; here they keep the device's, or are one.
Composition: as tgi: prompts alone, whole, or one token of every running request.
Reservation: block by block. Shortage, where the quota exceeds the pool: the newest is put back and recomputed, and
until all that were running then have left, the quota is 0.7 of itself.
Starvation: nobody overtakes; the head of the queue starts as tgi's does, and the oldest running request never lacks
a block.
"""

from pydantic import Field

from engine.request import Request
from engine.scheduling.policy import Limits, Policy
from engine.scheduling.prefill_turns import PrefillTurnParameters, PrefillTurns
from engine.scheduling.reservation import reserved_tokens
from engine.scheduling.shortage import decode_all
from engine.scheduling.step_builder import StepBuilder

_QUOTA_AFTER_SHORTAGE = 0.7


class RayServe2023(Policy):
    whole_prompts = True

    class Parameters(PrefillTurnParameters):
        max_batch_total_tokens: int | None = Field(
            None, gt=0, description="prompt and max_tokens of all that run; default: what the KV cache holds"
        )

    def __init__(self, parameters: Parameters, limits: Limits) -> None:
        super().__init__(parameters, limits)
        self.max_batch_total_tokens = parameters.max_batch_total_tokens
        self._turns = PrefillTurns(parameters)
        self._ran_out: set[int] = set()                # arrival indices of those that ran when blocks ran out

    def plan(self, step: StepBuilder) -> None:
        if self._ran_out:
            self._ran_out &= {request.arrival_index for request in step.running}
        num_running = step.num_running
        for request in self._next_batch(step):
            if not step.schedule(request, request.num_tokens):
                break                                  # within the quota, but the blocks are not there
        if len(step):
            self._turns.prefilled(num_running)
        elif num_running:
            decode_all(step)
            self._turns.decoded()
            if step.preempted:
                self._ran_out = {request.arrival_index for request in step.running}

    def _next_batch(self, step: StepBuilder) -> list[Request]:
        """The oldest waiting requests within the quota, if they are enough to pause decoding."""
        num_needed = self._turns.num_to_pause_for(step.num_running)
        if num_needed is None or step.num_waiting < num_needed:
            return []
        quota = self._quota(step) - sum(_counted(step, request) for request in step.running)
        num_prompt_tokens = 0
        batch: list[Request] = []
        for request in step.waiting:
            quota -= _counted(step, request)
            num_prompt_tokens += request.num_tokens
            is_alone = step.num_running == 0 and not batch
            if (quota < 0 and not is_alone) or step.num_running + len(batch) >= self.limits.max_num_seqs:
                break
            if num_prompt_tokens > self.limits.max_num_batched_tokens and batch:
                break
            batch.append(request)
        return batch if len(batch) >= num_needed else []

    def _quota(self, step: StepBuilder) -> int:
        quota = self.max_batch_total_tokens or step.num_blocks * step.block_size
        return int(quota * _QUOTA_AFTER_SHORTAGE) if self._ran_out else quota


def _counted(step: StepBuilder, request: Request) -> int:
    return reserved_tokens(step, request, "request")

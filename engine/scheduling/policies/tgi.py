"""text-generation-inference (Hugging Face): steps of prompts alone, which pause decoding, and steps of decodes alone.

Admission: the oldest waiting requests start together, as many as fit in `max_batch_prefill_tokens` of prompts, in
`max_batch_total_tokens` of prompts and max_tokens beside those that run, in the free blocks and in the device's
number of sequences. Decoding pauses for them if they are at least ⌊running × `waiting_served_ratio`⌋, or after
`max_waiting_tokens` decode steps without a new request. A request larger than a budget, which the server would
refuse, runs alone.
Composition: prompts alone, whole, or one token of every running request. Between two pauses there is a decode step.
Reservation: prompt and max_tokens, promised at the start. Shortage: cannot happen.
Starvation: nobody overtakes; the head of the queue starts at the latest when `max_waiting_tokens` decode steps have
passed and its maximum fits.
"""

from pydantic import Field

from engine.request import Request
from engine.scheduling.policy import Limits, Policy
from engine.scheduling.prefill_turns import PrefillTurnParameters, PrefillTurns
from engine.scheduling.reservation import ReservingParameters, reserved_tokens
from engine.scheduling.step_builder import StepBuilder


class Tgi(Policy):
    whole_prompts = True

    class Parameters(PrefillTurnParameters, ReservingParameters):
        max_batch_prefill_tokens: int | None = Field(
            None, gt=0, description="prompt tokens in one step; default: the device's step"
        )
        max_batch_total_tokens: int | None = Field(
            None, gt=0, description="prompt and max_tokens of all that run; default: what the KV cache holds"
        )

    def __init__(self, parameters: Parameters, limits: Limits) -> None:
        self.max_batch_prefill_tokens = parameters.max_batch_prefill_tokens or limits.max_num_batched_tokens
        self.max_batch_total_tokens = parameters.max_batch_total_tokens
        self.reserve = parameters.reserve
        self._turns = PrefillTurns(parameters)
        max_num_tokens = max(self.max_batch_prefill_tokens, limits.max_num_seqs)
        super().__init__(parameters, Limits(max_num_tokens, limits.max_num_seqs))

    def plan(self, step: StepBuilder) -> None:
        num_running = step.num_running
        for request in self._next_batch(step):
            if step.reserve(request, reserved_tokens(step, request, self.reserve)):
                step.schedule(request, request.num_tokens)
        if len(step):
            self._turns.prefilled(num_running)
        elif num_running:
            for request in step.running:
                step.schedule(request, 1)
            self._turns.decoded()

    def _next_batch(self, step: StepBuilder) -> list[Request]:
        num_needed = self._turns.num_to_pause_for(step.num_running)
        if num_needed is None or step.num_waiting < num_needed:
            return []
        batch = self._fitting(step)
        return batch if len(batch) >= num_needed else []

    def _fitting(self, step: StepBuilder) -> list[Request]:
        """The oldest waiting requests that can start together now. Cached prefixes are not counted on."""
        budget = self.max_batch_total_tokens or step.num_blocks * step.block_size
        num_tokens = sum(reserved_tokens(step, request, self.reserve) for request in step.running)
        num_prompt_tokens = num_blocks = 0
        batch: list[Request] = []
        for request in step.waiting:
            reserved = reserved_tokens(step, request, self.reserve)
            num_tokens += reserved
            num_prompt_tokens += request.num_tokens
            num_blocks += step.num_blocks_for(reserved)
            is_alone = step.num_running == 0 and not batch
            if num_blocks > step.num_available_blocks or step.num_running + len(batch) >= self.limits.max_num_seqs:
                break
            if num_tokens > budget and not is_alone:
                break
            if num_prompt_tokens > self.max_batch_prefill_tokens and batch:
                break
            batch.append(request)
        return batch

"""Chunked prefill (vLLM V1; Sarathi-Serve, Agrawal et al., OSDI 2024): decodes and prompt chunks in one token budget.

Admission: a waiting request starts when a seat is free and its whole sequence would fit and leave `watermark` of the
blocks, so that those who run do not lack blocks at once. Strictly first come, first served within a priority: one
that cannot start, or was preempted in this step, stops all behind it. Priorities are strict, without ageing: a
waiting request goes before running ones of a lower priority and preempts them where it lacks a seat or blocks; no
request preempts an equal in order to start.
Composition: running requests first, in order of arrival, then waiting ones. A prompt chunk leaves one token of the
budget for each running request behind it, so no prompt stalls a decode.
Reservation: block by block. Shortage: the newest of the lowest priority is recomputed later, if need be the one that
lacks the block.
"""

from pydantic import Field

from engine.request import RUNNING, Request
from engine.scheduling.policy import Limits, Policy, PolicyParameters
from engine.scheduling.shortage import schedule_or_preempt
from engine.scheduling.step_builder import StepBuilder


class Chunked(Policy):
    class Parameters(PolicyParameters):
        max_num_batched_tokens: int | None = Field(None, gt=0, description="tokens in one step; default: the device's")
        max_num_seqs: int | None = Field(None, gt=0, description="requests running at once; default: the device's")
        long_prefill_token_threshold: int = Field(0, ge=0, description="most tokens of one request in a step; 0: off")
        watermark: float = Field(0.01, ge=0, lt=1, description="of all blocks, left available by an admission")

    def __init__(self, parameters: Parameters, limits: Limits) -> None:
        self.max_num_batched_tokens = parameters.max_num_batched_tokens or limits.max_num_batched_tokens
        self.max_num_seqs = parameters.max_num_seqs or limits.max_num_seqs
        self.max_chunk = parameters.long_prefill_token_threshold or self.max_num_batched_tokens
        self.watermark = parameters.watermark
        super().__init__(parameters, Limits(self.max_num_batched_tokens, self.max_num_seqs))

    def plan(self, step: StepBuilder) -> None:
        for request in step.by_priority():
            budget = self.max_num_batched_tokens - step.num_tokens
            if budget == 0:
                return
            is_running = request.status is RUNNING
            chunk = 1
            if not is_running or request.num_uncomputed_tokens > 1:     # few do: most decode
                num_behind = step.num_running - len(step) - is_running
                chunk = max(1, min(budget - num_behind, self.max_chunk))
            if is_running:
                schedule_or_preempt(step, request, chunk)
            elif not self._start(step, request, chunk):
                return

    def _start(self, step: StepBuilder, request: Request, chunk: int) -> bool:
        if any(victim.priority <= request.priority for victim in step.preempted):
            return False
        while not self._has_room(step, request):
            victim = step.newest
            if victim is None or victim.priority <= request.priority:
                return False
            step.preempt(victim)
        return step.schedule(request, chunk)

    def _has_room(self, step: StepBuilder, request: Request) -> bool:
        leaving = int(self.watermark * step.num_blocks) if step.num_running else 0   # alone, a request may have all
        return step.num_running < self.max_num_seqs and step.fits(request, request.num_tokens, leaving=leaving)

"""SGLang (Zheng et al., NeurIPS 2024): an estimate of the output still to come, and cached prefixes first.

Admission: a waiting request starts when its sequence and min(remaining output, `clip_max_new_tokens`) fit beside
what those who run are expected to need: `new_token_ratio` of the same minimum each. The ratio falls from
`init_new_token_ratio` to `min_new_token_ratio` over `new_token_ratio_decay_steps` decode steps; a retraction raises it
to what the running ones have used of their max_tokens, looking RETRACT_STEPS ahead; with nobody left it starts anew.
`schedule_policy` lpm takes the longest cached prefix first, within a priority, while at most LPM_MAX_WAITING wait
(matching costs time); fcfs takes the oldest first.
Composition: prompts first, in steps of their own of up to `chunked_prefill_size` tokens; decodes when no prompt can
go on or start.
Reservation: the prompt whole, then block by block. Shortage: those with the least output are retracted, that is,
recomputed; among equals the longest prompt, then the newest.
Starvation: with fcfs nobody overtakes. With lpm a request can be overtaken as long as requests with longer cached
prefixes arrive, or until the queue is long. Of those who run, the one with the most output never lacks a block.
"""

from collections.abc import Iterable
from math import ceil
from typing import Literal

from pydantic import Field

from engine.request import Request
from engine.scheduling.policy import Limits, Policy, PolicyParameters
from engine.scheduling.prompts import continue_prompts
from engine.scheduling.shortage import decode_all
from engine.scheduling.step_builder import StepBuilder

LPM_MAX_WAITING = 128
RETRACT_STEPS = 20


class Sglang(Policy):
    class Parameters(PolicyParameters):
        schedule_policy: Literal["lpm", "fcfs"] = Field("lpm", description="longest cached prefix first, or the oldest")
        chunked_prefill_size: int = Field(8192, gt=0, description="prompt tokens in one step")
        max_running_requests: int | None = Field(None, gt=0, description="running at once; default: the device's")
        init_new_token_ratio: float = Field(0.7, ge=0, le=1, description="of the remaining output, expected at first")
        min_new_token_ratio: float = Field(0.098, ge=0, le=1, description="of the remaining output, expected at last")
        new_token_ratio_decay_steps: int = Field(600, gt=0, description="decode steps from the first ratio to the last")
        clip_max_new_tokens: int = Field(4096, gt=0, description="most remaining output that is counted")

    def __init__(self, parameters: Parameters, limits: Limits) -> None:
        self.schedule_policy = parameters.schedule_policy
        self.chunked_prefill_size = parameters.chunked_prefill_size
        self.max_num_seqs = parameters.max_running_requests or limits.max_num_seqs
        self.init_ratio = parameters.init_new_token_ratio
        self.min_ratio = min(parameters.min_new_token_ratio, self.init_ratio)
        self.decay = (self.init_ratio - self.min_ratio) / parameters.new_token_ratio_decay_steps
        self.clip = parameters.clip_max_new_tokens
        self.new_token_ratio = self.init_ratio
        super().__init__(parameters, Limits(max(self.chunked_prefill_size, self.max_num_seqs), self.max_num_seqs))

    def plan(self, step: StepBuilder) -> None:
        if step.num_running == 0:
            self.new_token_ratio = self.init_ratio
        continue_prompts(step, self.chunked_prefill_size)
        self._start(step)
        if not len(step):
            self._decode(step)

    def _start(self, step: StepBuilder) -> None:
        if not step.num_waiting or step.num_running >= self.max_num_seqs:
            return                                     # before the queue is matched with the cache for nothing
        expected = self.new_token_ratio * sum(self._remaining(step, request) for request in step.running)
        for request in self._order(step):
            left = self.chunked_prefill_size - step.num_tokens
            if left == 0 or step.num_running >= self.max_num_seqs:
                return
            remaining = self._remaining(step, request)
            leaving = ceil((expected + remaining) / step.block_size)
            if step.num_running and not step.fits(request, request.num_tokens, leaving=leaving):
                return                                 # alone, it may have all there is
            if not step.reserve(request, request.num_tokens):
                return
            step.schedule(request, left)
            expected += remaining

    def _order(self, step: StepBuilder) -> Iterable[Request]:
        if self.schedule_policy == "fcfs" or step.num_waiting > LPM_MAX_WAITING:
            return step.waiting
        return sorted(step.waiting, key=lambda request: (request.priority, -step.num_cached_tokens(request)))

    def _remaining(self, step: StepBuilder, request: Request) -> int:
        """Output tokens that the request may still add, as far as they are counted."""
        end = min(request.num_prompt_tokens + request.max_tokens, step.max_model_len)
        return min(max(end - request.num_tokens, 0), self.clip)

    def _decode(self, step: StepBuilder) -> None:
        decode_all(step, least_output)
        if step.preempted:
            self.new_token_ratio = max(self.new_token_ratio, used_ratio(step.running))
        else:
            self.new_token_ratio = max(self.new_token_ratio - self.decay, self.min_ratio)


def least_output(step: StepBuilder) -> Request | None:
    """Whom a retraction costs least: the least output, then the longest prompt, then the newest."""
    newest_first = reversed(list(step.running))
    return min(newest_first, key=lambda r: (r.num_tokens - r.num_prompt_tokens, -r.num_prompt_tokens), default=None)


def used_ratio(requests: Iterable[Request]) -> float:
    """Part of their max_tokens that `requests` will have used in RETRACT_STEPS steps from now."""
    used = total = 0
    for request in requests:
        used += request.num_tokens - request.num_prompt_tokens + RETRACT_STEPS
        total += request.max_tokens
    return min(used / (total + 1), 1.0)

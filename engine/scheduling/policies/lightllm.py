"""LightLLM (Gong et al., ASPLOS 2025): admission by the predicted peak of all tokens, blocks of a single token.

Admission: first come, first served; a waiting request starts when the peak predicted for all who would run stays
below `max_total_token_num`. A request holds a tokens now and is expected to gain b more; with the longest b first,
the peak is max over i of b_i · i + a_1 + … + a_i, the tokens held when the i-th ends. b comes from max_tokens where
the length is known (ignore_eos) or the pool is busy, used to at least `router_token_ratio`; else it comes from at
most the larger of 1.1 · output so far and `router_max_new_token_len`; LightLLM adds 6 to be safe.
Composition: prompts first, in steps of their own of up to `chunked_prefill_size` tokens; decodes when no prompt can
go on or start.
Reservation: the prompt whole, then token by token. Shortage, when a prediction was too low: the newest is paused,
that is, recomputed.
Starvation: nobody overtakes; the head of the queue starts at the latest when nobody runs, and a running request waits
between two tokens for at most as many prompt steps as it takes to fill the pool.
"""

from collections.abc import Iterable
from typing import NamedTuple

from pydantic import Field

from engine.request import Request
from engine.scheduling.policy import Limits, Policy, PolicyParameters
from engine.scheduling.prompts import continue_prompts, num_tokens_left
from engine.scheduling.shortage import decode_all
from engine.scheduling.step_builder import StepBuilder

EXTRA_TOKENS = 6                                       # LightLLM's allowance for what its pipeline learns late


class Claim(NamedTuple):
    """What a request holds and is expected to gain, in tokens."""

    held: int
    gain: int


def predicted_peak(claims: Iterable[Claim]) -> int:
    """The most tokens held at once, if every request gains a token a step until it has gained all."""
    peak = total_held = 0
    for count, claim in enumerate(sorted(claims, key=lambda claim: -claim.gain), start=1):
        total_held += claim.held
        peak = max(peak, claim.gain * count + total_held)
    return peak


def claim(request: Request, max_model_len: int, max_expected: int | None) -> Claim:
    """`max_expected` bounds the output expected beyond 1.1 times what there is; None: it may be all of max_tokens."""
    num_output = request.num_tokens - request.num_prompt_tokens
    expected = min(request.max_tokens, max_model_len - request.num_prompt_tokens)
    if max_expected is not None:
        expected = min(expected, max(int(1.1 * num_output), max_expected))
    return Claim(request.num_tokens + 1, max(expected - num_output - 1, 0) + EXTRA_TOKENS)


class Lightllm(Policy):
    class Parameters(PolicyParameters):
        max_total_token_num: int | None = Field(None, gt=0, description="tokens held at once; default: the KV pool's")
        router_token_ratio: float = Field(0.0, ge=0, le=1, description="of the pool in use, from which it is busy")
        router_max_new_token_len: int = Field(1024, gt=0, description="output expected while the pool is not busy")
        chunked_prefill_size: int = Field(4096, ge=0, description="prompt tokens in one step; 0: whole prompts")
        running_max_req_size: int | None = Field(None, gt=0, description="running at once; default: the device's")

    default_block_size = 1

    def __init__(self, parameters: Parameters, limits: Limits) -> None:
        self.max_total_token_num = parameters.max_total_token_num
        self.router_token_ratio = parameters.router_token_ratio
        self.router_max_new_token_len = parameters.router_max_new_token_len
        self.keeps_whole = parameters.chunked_prefill_size == 0
        self.prefill_budget = parameters.chunked_prefill_size or limits.max_num_batched_tokens
        self.max_num_seqs = parameters.running_max_req_size or limits.max_num_seqs
        super().__init__(parameters, Limits(max(self.prefill_budget, self.max_num_seqs), self.max_num_seqs))

    def plan(self, step: StepBuilder) -> None:
        continue_prompts(step, self.prefill_budget)
        self._start(step)
        if not len(step):
            decode_all(step)

    def _start(self, step: StepBuilder) -> None:
        capacity = step.num_blocks * step.block_size
        max_total = min(self.max_total_token_num or capacity, capacity)
        num_used = (step.num_blocks - step.num_available_blocks) * step.block_size
        is_busy = num_used >= self.router_token_ratio * max_total
        claims = [self._claim(step, request, is_busy) for request in step.running] if step.num_waiting else []
        for request in step.waiting:
            left = self.prefill_budget - step.num_tokens
            if left == 0 or step.num_running >= self.max_num_seqs:
                return
            if self.keeps_whole and len(step) and num_tokens_left(step, request) > left:
                return                                 # one that is longer than the budget is cut all the same
            claims.append(self._claim(step, request, is_busy))
            if step.num_running and predicted_peak(claims) >= max_total:
                return                                 # alone, it may have all there is
            if not step.reserve(request, request.num_tokens):
                return
            step.schedule(request, left)

    def _claim(self, step: StepBuilder, request: Request, is_busy: bool) -> Claim:
        knows_length = is_busy or request.sampling.ignore_eos
        return claim(request, step.max_model_len, None if knows_length else self.router_max_new_token_len)

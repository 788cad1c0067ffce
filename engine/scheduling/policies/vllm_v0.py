"""vLLM as of 2023 (Kwon et al., SOSP 2023): paged attention, with prompts and decodes in separate steps.

Admission: waiting requests go before running ones, first come, first served: one starts when fewer than
`max_num_seqs` run and its whole sequence fits and leaves `watermark` of the blocks.
Composition: whenever a waiting request can start, a step of whole prompts only, up to `max_num_batched_tokens`, while
all decodes pause; else a step of all decodes. A sequence longer than the budget, which vLLM refused, is computed over
several prompt steps. `max_num_seqs` is never above `max_num_batched_tokens`, as vLLM demanded.
Reservation: block by block. Shortage: the newest is recomputed; swapping is not offered.
Starvation: nobody overtakes, and a running request waits between two tokens for at most as many prompt steps as it
takes to fill the seats and blocks.
"""

from pydantic import Field

from engine.scheduling.policy import Limits, Policy, PolicyParameters
from engine.scheduling.prompts import continue_prompts, num_tokens_left
from engine.scheduling.shortage import decode_all
from engine.scheduling.step_builder import StepBuilder


class VllmV0(Policy):
    class Parameters(PolicyParameters):
        max_num_batched_tokens: int = Field(2560, gt=0, description="prompt tokens in one step")
        max_num_seqs: int = Field(256, gt=0, description="requests running at once")
        watermark: float = Field(0.01, ge=0, lt=1, description="of all blocks, left available by an admission")

    default_block_size = 16

    def __init__(self, parameters: Parameters, limits: Limits) -> None:
        self.max_num_batched_tokens = parameters.max_num_batched_tokens
        self.max_num_seqs = min(parameters.max_num_seqs, self.max_num_batched_tokens)
        self.watermark = parameters.watermark
        super().__init__(parameters, Limits(self.max_num_batched_tokens, self.max_num_seqs))

    def plan(self, step: StepBuilder) -> None:
        continue_prompts(step, self.max_num_batched_tokens)
        self._start(step)
        if not len(step):
            decode_all(step)

    def _start(self, step: StepBuilder) -> None:
        for request in step.waiting:
            left = self.max_num_batched_tokens - step.num_tokens
            if left == 0 or step.num_running >= self.max_num_seqs:
                return
            if len(step) and num_tokens_left(step, request) > left:
                return
            leaving = int(self.watermark * step.num_blocks) if step.num_running else 0   # alone, it may have all
            if not step.fits(request, request.num_tokens, leaving=leaving):
                return
            step.reserve(request, request.num_tokens)
            step.schedule(request, left)

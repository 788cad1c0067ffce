"""Dynamic SplitFuse (DeepSpeed-FastGen, Holmes et al., 2024): steps of one size, prompts cut to fill them.

Admission: first come, first served; a waiting request starts when fewer than `max_ragged_sequence_count` run and all
blocks of its prompt fit; it gets them at once.
Composition: one token of every decode, then prompts, cut so that the step holds exactly `token_budget` tokens as long
as there is work: the last prompt of a step is split, short ones are fused. No more run than a step has tokens, so
every decode is in every step.
Reservation: the prompt whole, then block by block. Shortage: the last holder of blocks is flushed and recomputed.
Starvation: nobody overtakes, and the oldest running request is in every step and never lacks a block.
"""

from pydantic import Field

from engine.scheduling.policy import Limits, Policy, PolicyParameters
from engine.scheduling.prompts import continue_prompts, is_prefilling
from engine.scheduling.shortage import schedule_or_preempt
from engine.scheduling.step_builder import StepBuilder


class Splitfuse(Policy):
    class Parameters(PolicyParameters):
        token_budget: int = Field(768, gt=0, description="tokens in one step")
        max_ragged_sequence_count: int = Field(512, gt=0, description="requests running at once")

    def __init__(self, parameters: Parameters, limits: Limits) -> None:
        self.token_budget = parameters.token_budget
        self.max_num_seqs = min(parameters.max_ragged_sequence_count, self.token_budget)
        super().__init__(parameters, Limits(self.token_budget, self.max_num_seqs))

    def plan(self, step: StepBuilder) -> None:
        for request in step.running:
            if not is_prefilling(request):
                schedule_or_preempt(step, request, 1)
        continue_prompts(step, self.token_budget)
        if step.preempted:
            return                                     # who was just put back may not start at once
        for request in step.waiting:
            left = self.token_budget - step.num_tokens
            if left == 0 or step.num_running >= self.max_num_seqs:
                return
            if not step.reserve(request, request.num_tokens):
                return
            step.schedule(request, left)

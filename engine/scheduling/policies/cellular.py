"""Cellular batching (BatchMaker, Gao et al., EuroSys 2018): requests join and leave at every cell, here every token.

Admission: at every cell boundary the oldest waiting request joins if fewer than `max_num_seqs` run and all its known
tokens have room beside those that the running ones still have to compute. First come, first served.
Composition: one token a request a step, of its prompt too: a cell of a recurrent network takes one token at a time.
Reservation: block by block. Shortage, which a recurrent state of fixed size never met: the newest is recomputed.
Starvation: the head of the queue joins before anyone behind it, and the oldest running request never lacks a block.
"""

from pydantic import Field

from engine.request import Request
from engine.scheduling.policy import Limits, Policy, PolicyParameters
from engine.scheduling.shortage import schedule_or_preempt
from engine.scheduling.step_builder import StepBuilder


class Cellular(Policy):
    class Parameters(PolicyParameters):
        max_num_seqs: int | None = Field(None, gt=0, description="requests running at once; default: the device's")

    def __init__(self, parameters: Parameters, limits: Limits) -> None:
        self.max_num_seqs = parameters.max_num_seqs or limits.max_num_seqs
        super().__init__(parameters, Limits(self.max_num_seqs, self.max_num_seqs))

    def plan(self, step: StepBuilder) -> None:
        num_owed = 0                                   # blocks that known tokens of scheduled requests still need
        for request in step.running:
            if not schedule_or_preempt(step, request, 1):
                break
            num_owed += self._owed(step, request)
        if step.preempted:
            return                                     # who was just put back may not start at once
        for request in step.waiting:
            if step.num_running >= self.max_num_seqs or not step.fits(request, request.num_tokens, leaving=num_owed):
                return
            step.schedule(request, 1)
            num_owed += self._owed(step, request)

    def _owed(self, step: StepBuilder, request: Request) -> int:
        num_held = request.num_computed_tokens + step.num_scheduled_tokens[request.request_id]
        return step.num_blocks_for(request.num_tokens) - step.num_blocks_for(num_held)

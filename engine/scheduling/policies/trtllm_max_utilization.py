"""TensorRT-LLM's in-flight batching with MAX_UTILIZATION: whatever fits now runs, and may be paused later.

Admission: first come, first served; a waiting request starts when fewer than `max_batch_size` run and its prompt fits
now, whatever those who run will need.
Composition: one token of every decode, then prompts, in steps of at most `max_num_tokens`: whole, or with
`enable_chunked_context` cut at a multiple of the block to fill the step.
Reservation: the prompt whole, then block by block. Shortage: the newest is paused, that is, recomputed; nobody starts
in that step.
Starvation: nobody overtakes, and the oldest running request never lacks a block.
"""

from engine.scheduling.inflight import InflightParameters, InflightSteps
from engine.scheduling.policy import Limits, Policy
from engine.scheduling.prompts import is_prefilling
from engine.scheduling.shortage import schedule_or_preempt
from engine.scheduling.step_builder import StepBuilder


class TrtllmMaxUtilization(Policy):
    class Parameters(InflightParameters):
        pass

    def __init__(self, parameters: Parameters, limits: Limits) -> None:
        self.steps = InflightSteps(parameters, limits)
        super().__init__(parameters, self.steps.limits)

    def plan(self, step: StepBuilder) -> None:
        for request in step.running:
            if not is_prefilling(request):
                schedule_or_preempt(step, request, 1)
        if self.steps.continue_prompts(step) and not step.preempted:
            self._start(step)

    def _start(self, step: StepBuilder) -> None:
        for request in step.waiting:
            chunk = self.steps.prompt_chunk(step, request)
            if chunk == 0 or step.num_running >= self.steps.max_batch_size:
                return
            if not step.reserve(request, request.num_tokens):
                return
            step.schedule(request, chunk)

"""TensorRT-LLM's in-flight batching with GUARANTEED_NO_EVICT: who has started is never paused.

Admission: first come, first served; a waiting request starts when fewer than `max_batch_size` run and its maximum
output fits beside all that is promised to those who run.
Composition: one token of every decode, then prompts, in steps of at most `max_num_tokens`: whole, or with
`enable_chunked_context` cut at a multiple of the block to fill the step.
Reservation: promised at once, prompt and max_tokens (`reserve: max_model_len`: the model's context); blocks are taken
as they are needed. Shortage: cannot happen.
Starvation: nobody overtakes; the head of the queue starts at the latest when all who ran before it have ended.
"""

from engine.request import Request
from engine.scheduling.inflight import InflightParameters, InflightSteps
from engine.scheduling.policy import Limits, Policy
from engine.scheduling.prompts import is_prefilling
from engine.scheduling.reservation import ReservingParameters, reserved_tokens
from engine.scheduling.step_builder import StepBuilder


class TrtllmNoEvict(Policy):
    class Parameters(InflightParameters, ReservingParameters):
        pass

    def __init__(self, parameters: Parameters, limits: Limits) -> None:
        self.steps = InflightSteps(parameters, limits)
        self.reserve = parameters.reserve
        super().__init__(parameters, self.steps.limits)

    def plan(self, step: StepBuilder) -> None:
        for request in step.running:
            if not is_prefilling(request):
                step.schedule(request, 1)
        if self.steps.continue_prompts(step):
            self._start(step)

    def _start(self, step: StepBuilder) -> None:
        if not step.num_waiting:
            return
        promised = sum(self._num_blocks(step, request) - step.num_blocks_held(request) for request in step.running)
        for request in step.waiting:
            chunk = self.steps.prompt_chunk(step, request)
            if chunk == 0 or step.num_running >= self.steps.max_batch_size:
                return
            num_blocks = self._num_blocks(step, request)
            if not step.fits(request, num_blocks * step.block_size, leaving=promised):
                return
            step.schedule(request, chunk)
            promised += num_blocks - step.num_blocks_held(request)

    def _num_blocks(self, step: StepBuilder, request: Request) -> int:
        return step.num_blocks_for(reserved_tokens(step, request, self.reserve))

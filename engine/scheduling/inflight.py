"""In-flight batching as TensorRT-LLM composes its steps: what its two capacity policies share."""

from pydantic import Field

from engine.request import Request
from engine.scheduling.policy import Limits, PolicyParameters
from engine.scheduling.prompts import is_prefilling, num_tokens_left
from engine.scheduling.step_builder import StepBuilder


class InflightParameters(PolicyParameters):
    """Parameters of both capacity policies."""

    max_num_tokens: int = Field(8192, gt=0, description="tokens in one step")
    max_batch_size: int | None = Field(None, gt=0, description="requests running at once; default: the device's")
    enable_chunked_context: bool = Field(False, description="cut prompts, at multiples of the block, to fill a step")


class InflightSteps:
    """The sizes of such steps: how many requests run, and how much of a prompt a step takes."""

    def __init__(self, parameters: InflightParameters, limits: Limits) -> None:
        self.max_num_tokens = parameters.max_num_tokens
        self.max_batch_size = min(parameters.max_batch_size or limits.max_num_seqs, parameters.max_num_tokens)
        self.chunked = parameters.enable_chunked_context

    @property
    def limits(self) -> Limits:
        return Limits(self.max_num_tokens, self.max_batch_size)

    def prompt_chunk(self, step: StepBuilder, request: Request) -> int:
        """Tokens of a prompt that the step can still take: all that are left, or whole blocks of them; 0: none now.

        A prompt longer than any step, which TensorRT-LLM refused, is cut even where others are not.
        """
        room = self.max_num_tokens - step.num_tokens
        rest = num_tokens_left(step, request)
        if rest <= room:
            return rest
        if not self.chunked and rest <= self.max_num_tokens:
            return 0
        whole_blocks = room - room % step.block_size
        return whole_blocks if len(step) else whole_blocks or room    # an empty step takes what it can

    def continue_prompts(self, step: StepBuilder) -> bool:
        """Computes prompts begun in earlier steps; False if one has to wait, and so have all behind it."""
        for request in step.running:
            if is_prefilling(request):
                chunk = self.prompt_chunk(step, request)
                if chunk == 0:
                    return False
                step.schedule(request, chunk)
        return True

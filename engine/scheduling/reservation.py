"""How much KV cache a policy that reserves sets aside for one request, once, when it starts."""

from typing import Literal

from pydantic import Field

from engine.request import Request
from engine.scheduling.policy import PolicyParameters
from engine.scheduling.step_builder import StepBuilder

Reserve = Literal["request", "max_model_len"]


class ReservingParameters(PolicyParameters):
    """Parameters of every policy that reserves."""

    reserve: Reserve = Field(
        "request",
        description="KV tokens set aside for a request: its prompt and max_tokens (request), or the model's context"
        " (max_model_len), as ORCA's experiments had it",
    )


def reserved_tokens(step: StepBuilder, request: Request, reserve: Reserve) -> int:
    """Tokens of cache that hold `request` to its end, or the whole context."""
    if reserve == "max_model_len":
        return step.max_model_len
    return min(request.num_prompt_tokens + request.max_tokens, step.max_model_len)

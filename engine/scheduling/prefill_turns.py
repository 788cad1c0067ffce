"""When decoding pauses for prompts: the rule of text-generation-inference, shared by those who took it over."""

from pydantic import Field

from engine.scheduling.policy import PolicyParameters


class PrefillTurnParameters(PolicyParameters):
    waiting_served_ratio: float = Field(
        1.2,
        ge=0,
        allow_inf_nan=False,
        description="decoding pauses for prompts when so many requests can start, as a ratio to those that run",
    )
    max_waiting_tokens: int = Field(
        20, ge=0, description="decode steps after which decoding pauses for any number of requests that can start"
    )


class PrefillTurns:
    """Whose turn the next step is. Told what each step did; knows nothing of memory.

    A step that has paused decoding is followed by a decode step, so that a stream of prompts cannot stop those who
    run. In a batch just begun nobody is paused, and a second helping of prompts may follow the first at once.
    """

    def __init__(self, parameters: PrefillTurnParameters) -> None:
        self._ratio = parameters.waiting_served_ratio
        self._max_decode_steps = parameters.max_waiting_tokens
        self._num_decode_steps = 0                     # since the last prefill
        self._has_paused = False

    def num_to_pause_for(self, num_running: int) -> int | None:
        """Requests that must be able to start now if decoding is to pause for them; None: it may not."""
        if num_running == 0:
            return 1
        if self._has_paused:
            return None
        if self._num_decode_steps >= self._max_decode_steps:
            return 1
        return max(1, int(num_running * self._ratio))

    def prefilled(self, num_running: int) -> None:
        """The step computes prompts, while `num_running` others wait for it."""
        self._num_decode_steps = 0
        self._has_paused = num_running > 0

    def decoded(self) -> None:
        self._num_decode_steps += 1
        self._has_paused = False

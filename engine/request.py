"""A request: the frozen value a client hands in, and the state that the scheduler keeps of it."""

from dataclasses import dataclass, field
from enum import StrEnum

from engine.sampling.params import SamplingParams


class FinishReason(StrEnum):
    STOP = "stop"          # end of sequence, a stop token or a stop string
    LENGTH = "length"      # max_tokens, the context or the KV pool was reached
    ABORT = "abort"        # the client went away or asked for it
    ERROR = "error"        # this request failed; the output's `error` says why


class RequestStatus(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


# By name, because a look-up in an enum takes 60 ns (CPython 3.11), and every step asks this of every request.
RUNNING, FINISHED = RequestStatus.RUNNING, RequestStatus.FINISHED


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sequence to generate. A request for n choices is n of these, alike but for `request_id` and `choice`."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    choice: int = 0                                # index among a client's n choices; part of the random key
    first_choice_id: str | None = None             # of the choice that computes the prompt; the others share its blocks
    priority: int = 0                              # lower first
    tenant: str | None = None
    resume_token_ids: tuple[int, ...] = ()         # output already generated elsewhere; not sent out again


@dataclass(slots=True, eq=False)
class Request:
    """The scheduler's own state of one request. Only scheduling and core change it.

    token_ids    [0, num_prompt_tokens) prompt, then output
                 |------ num_computed_tokens ------|-- scheduled this step --|-- still to compute --|
                 0                                                                        num_tokens

    The last num_pending_tokens of token_ids are placeholders: sampled by steps whose results are still on the device.
    """

    generation: GenerationRequest
    arrival_time_s: float
    token_ids: list[int] = field(default_factory=list)   # prompt + output so far
    num_computed_tokens: int = 0                   # tokens whose K/V are in the cache, or will be after steps in flight
    num_pending_tokens: int = 0                    # at most one for each step in flight
    num_cached_tokens: int = 0                     # of those, found in the prefix cache at first admission
    status: RequestStatus = RequestStatus.WAITING
    num_preemptions: int = 0
    first_scheduled_time_s: float | None = None
    first_token_time_s: float | None = None
    last_token_time_s: float | None = None
    finish_reason: FinishReason | None = None
    arrival_index: int = 0                         # order of arrival at the scheduler, ties in time resolved
    # Of `generation`, kept here because every step asks for them, of every request, and properties are slow.
    request_id: str = field(init=False)
    priority: int = field(init=False)
    max_tokens: int = field(init=False)
    num_prompt_tokens: int = field(init=False)
    most_tokens: int = field(init=False)           # with the prompt; lowered to what context and KV pool have room for

    def __post_init__(self) -> None:
        if not self.token_ids:
            self.token_ids = [*self.generation.prompt_token_ids, *self.generation.resume_token_ids]
        self.request_id, self.priority = self.generation.request_id, self.generation.priority
        self.max_tokens = self.generation.sampling.max_tokens
        self.num_prompt_tokens = len(self.generation.prompt_token_ids)
        self.most_tokens = self.num_prompt_tokens + self.max_tokens

    @property
    def sampling(self) -> SamplingParams:
        return self.generation.sampling

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_known_tokens(self) -> int:
        return len(self.token_ids) - self.num_pending_tokens

    @property
    def num_output_tokens(self) -> int:
        """Output tokens that are known."""
        return len(self.token_ids) - self.num_pending_tokens - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens to compute before the next one can be sampled; 1 for a request that is decoding."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def is_at_limit(self) -> bool:
        """Whether it has max_tokens, or the context or the whole KV pool has no room to compute another token."""
        return len(self.token_ids) - self.num_pending_tokens >= self.most_tokens

    @property
    def is_finished(self) -> bool:
        return self.status is FINISHED

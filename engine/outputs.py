"""What leaves the engine: frozen values, small enough to send by the thousand."""

import sys
from array import array
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from engine.request import FinishReason

Task = Literal["generate", "embed", "score"]         # what a model can do: one of them


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log probabilities at one position, from the model's own logits (no temperature, penalty or bias).

    `logprob` and `rank` are None only for the first prompt token, which nothing precedes.
    """

    token_id: int
    logprob: float | None
    rank: int | None                               # 1: the most likely token
    top: tuple[tuple[int, float], ...] = ()        # (token id, logprob), best first


class RequestOutput(NamedTuple):
    """What one request gained since its last output. The last one, and only that, has a `finish_reason`.

    A tuple, because one is made for every token: a frozen dataclass takes six times as long.
    """

    request_id: str
    token_ids: tuple[int, ...] = ()                # new tokens
    text: str = ""                                 # new text; it may lag the tokens by what is held back
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0                     # cumulative
    num_cached_tokens: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()       # one per new token, if asked for
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None   # whole, once, with the first output
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None           # the stop token or string that ended it; None for EOS
    error: str | None = None                       # with FinishReason.ERROR
    vector: bytes = b""                            # all that an encoder's request gains: float32, little-endian

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    def then(self, later: "RequestOutput") -> "RequestOutput":
        """This output and the next one of the same request as one."""
        return RequestOutput(
            later.request_id, self.token_ids + later.token_ids, self.text + later.text,
            later.num_prompt_tokens, later.num_output_tokens, later.num_cached_tokens,
            self.logprobs + later.logprobs,
            self.prompt_logprobs if later.prompt_logprobs is None else later.prompt_logprobs,
            later.finish_reason, later.stop_reason, later.error, later.vector,
        )  # fmt: skip

    def vector_values(self) -> "array[float]":
        """The numbers of `vector`; of a cross-encoder it is one, the score of its pair."""
        values = array("f", self.vector)
        if sys.byteorder == "big":
            values.byteswap()
        return values


@dataclass(frozen=True, slots=True)
class Histogram:
    """Cumulative histogram in the Prometheus sense; `counts[i]` observations were <= `bounds[i]`, the last is +Inf."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]                        # len(bounds) + 1, not cumulative
    total: float = 0.0                             # sum of observations


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A cheap snapshot of one engine. Counters only grow; gauges are of the last step."""

    model: str = ""
    task: Task = "generate"
    vector_size: int = 0                           # numbers of an embedding; 0: the model generates, or scores pairs
    num_requests_running: int = 0
    num_requests_waiting: int = 0
    num_tokens_waiting: int = 0                    # uncomputed tokens of waiting and running requests: the load
    kv_blocks_total: int = 0
    kv_blocks_used: int = 0                        # referenced by a request; cached idle blocks are not used
    kv_blocks_cached: int = 0                      # idle, still holding a reusable prefix
    kv_capacity_tokens: int = 0
    max_model_len: int = 0
    num_preemptions: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    prefix_cache_queries: int = 0                  # tokens looked up
    prefix_cache_hits: int = 0                     # tokens found
    num_finished: dict[str, int] = field(default_factory=dict)   # finish reason -> requests
    num_steps: int = 0
    step_time_s: dict[str, float] = field(default_factory=dict)  # schedule, prepare, forward, sample, output -> total
    ttft_s: Histogram | None = None
    itl_s: Histogram | None = None
    e2el_s: Histogram | None = None
    queue_time_s: Histogram | None = None
    heartbeat_age_s: float = 0.0                   # since the step loop last came round or, in a step, since it began
    is_stepping: bool = False

    @property
    def kv_cache_usage(self) -> float:
        return self.kv_blocks_used / self.kv_blocks_total if self.kv_blocks_total else 0.0

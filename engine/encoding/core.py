"""EncoderCore: the step loop's body of an engine that encodes texts. Every accepted request ends exactly once.

A step takes whole texts (`packing`), computes them packed without padding, and ends them all.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from engine.continuation import Continuation
from engine.embedding import EmbeddingRequest, EngineRequest
from engine.encoding.packing import in_turns, pack
from engine.encoding.pooling import as_bytes
from engine.encoding.runner import TextRunner
from engine.errors import ContextTooLong, IntegrityError, InvalidRequest, QueueFull
from engine.metrics import EngineMetrics
from engine.outputs import EngineStats, RequestOutput, Task
from engine.request import FinishReason
from engine.scheduling.policy import Limits

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EncoderFacts:
    """What an encoder's core has to know of its model."""

    name: str
    task: Task
    vocab_size: int
    vector_size: int
    normalize: bool
    max_model_len: int                 # tokens of one text, or of a pair


@dataclass(frozen=True, slots=True)
class _Waiting:
    request: EmbeddingRequest
    arrival_time_s: float


class EncoderCore:
    """The Core of `engine.stepping` for encoders."""

    grammars = None                                    # nothing is generated

    def __init__(
        self,
        runner: TextRunner,
        facts: EncoderFacts,
        limits: Limits,
        *,
        max_num_waiting: int,
        clock: Callable[[], float],
        check_every_step: bool = False,
    ) -> None:
        self._runner, self._facts, self._limits = runner, facts, limits
        self._max_num_waiting, self._clock, self._check_every_step = max_num_waiting, clock, check_every_step
        self._waiting: dict[str, _Waiting] = {}        # request_id -> text, the oldest first
        self._num_tokens_waiting = 0
        self._num_running = 0                          # texts of the step that is being computed
        self._outputs: list[RequestOutput] = []        # last words of texts aborted between steps
        self._metrics = EngineMetrics()

    @property
    def has_work(self) -> bool:
        return bool(self._waiting)

    @property
    def wait_until_s(self) -> float | None:
        return None                                    # a step always computes something

    def add_request(self, request: EngineRequest, /) -> None:
        """Accept `request`. Raises RequestError if it can never be served, or not now."""
        if not isinstance(request, EmbeddingRequest):
            raise InvalidRequest("this model encodes texts; it generates none", param="model")
        if request.request_id in self._waiting:
            raise InvalidRequest(f"request id {request.request_id!r} is in use", param="request_id")
        self._check(request)
        if len(self._waiting) >= self._max_num_waiting:
            raise QueueFull(f"{self._max_num_waiting} texts are waiting already; try again later")
        self._waiting[request.request_id] = _Waiting(request, self._clock())
        self._num_tokens_waiting += len(request.prompt_token_ids)

    def abort(self, request_id: str) -> None:
        if request_id in self._waiting:
            self._outputs.append(self._finish(self._take(request_id), FinishReason.ABORT))

    def abort_all(self) -> list[RequestOutput]:
        for request_id in tuple(self._waiting):
            self.abort(request_id)
        return self.take_outputs()

    def drain(self) -> list[Continuation]:
        """What has not been computed can be computed anywhere as it is."""
        continuations = [Continuation(waiting.request) for waiting in self._waiting.values()]
        self._outputs = self.abort_all()
        return continuations

    def take_outputs(self) -> list[RequestOutput]:
        outputs, self._outputs = self._outputs, []
        return outputs

    def step(self) -> list[RequestOutput]:
        begun_s = self._clock()
        taken = [self._take(request_id) for request_id in self._packed()]
        self._num_running = len(taken)
        for waiting in taken:
            self._metrics.queue_time_s.observe(begun_s - waiting.arrival_time_s)
        vectors = self._runner.encode([waiting.request for waiting in taken])
        computed_s = self._clock()
        outputs = self.take_outputs()
        outputs += [self._answer(waiting, vector) for waiting, vector in zip(taken, vectors, strict=True)]
        self._num_running = 0
        self._metrics.num_steps += 1
        self._metrics.step_time_s["forward"] += computed_s - begun_s
        self._metrics.step_time_s["output"] += self._clock() - computed_s
        if self._check_every_step:
            self.check_integrity()
        return outputs

    def prepare(self) -> bool:
        return False

    def check_integrity(self) -> None:
        num_tokens = sum(len(waiting.request.prompt_token_ids) for waiting in self._waiting.values())
        if num_tokens != self._num_tokens_waiting:
            raise IntegrityError(f"{num_tokens} tokens are waiting; the books say {self._num_tokens_waiting}")

    def close(self) -> None: ...

    def report_death(self, error: BaseException) -> None:
        log.error("engine died in a step of %d texts", self._num_running, exc_info=error)

    def stats(self) -> EngineStats:
        """A snapshot; safe to call from another thread, since it only reads whole values."""
        metrics = self._metrics
        return EngineStats(
            model=self._facts.name,
            task=self._facts.task,
            vector_size=self._facts.vector_size if self._facts.task == "embed" else 0,
            num_requests_running=self._num_running,
            num_requests_waiting=len(self._waiting),
            num_tokens_waiting=self._num_tokens_waiting,
            max_model_len=self._facts.max_model_len,
            num_prompt_tokens=metrics.num_prompt_tokens,
            num_finished=dict(metrics.num_finished),
            num_steps=metrics.num_steps,
            step_time_s=dict(metrics.step_time_s),
            e2el_s=metrics.e2el_s.snapshot(),
            queue_time_s=metrics.queue_time_s.snapshot(),
        )

    def _check(self, request: EmbeddingRequest) -> None:
        token_ids, facts = request.prompt_token_ids, self._facts
        if not token_ids:
            raise InvalidRequest("the input is empty", param="input")
        if not 0 <= min(token_ids) <= max(token_ids) < facts.vocab_size:
            wrong = min(token_ids) if min(token_ids) < 0 else max(token_ids)
            raise InvalidRequest(f"token id {wrong} is not in [0, {facts.vocab_size})", param="input")
        if request.token_type_ids and len(request.token_type_ids) != len(token_ids):
            raise InvalidRequest(f"{len(request.token_type_ids)} token types for {len(token_ids)} tokens")
        if len(token_ids) > facts.max_model_len:
            raise ContextTooLong(
                f"the input has {len(token_ids)} tokens; the model takes at most {facts.max_model_len}", param="input"
            )
        if request.dimensions is not None and not 1 <= request.dimensions <= facts.vector_size:
            raise InvalidRequest(
                f"dimensions: {request.dimensions} asked for; the model's vectors have {facts.vector_size}",
                param="dimensions",
            )

    def _packed(self) -> list[str]:
        tenants = {request_id: waiting.request.tenant for request_id, waiting in self._waiting.items()}
        lengths = ((text, len(self._waiting[text].request.prompt_token_ids)) for text in in_turns(tenants))
        return pack(
            lengths, max_num_tokens=self._limits.max_num_batched_tokens, max_num_texts=self._limits.max_num_seqs
        )

    def _take(self, request_id: str) -> _Waiting:
        waiting = self._waiting.pop(request_id)
        self._num_tokens_waiting -= len(waiting.request.prompt_token_ids)
        return waiting

    def _answer(self, waiting: _Waiting, vector: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> RequestOutput:
        self._metrics.num_prompt_tokens += len(waiting.request.prompt_token_ids)
        if not np.isfinite(vector).all():
            return self._finish(waiting, FinishReason.ERROR, error="the model gave a vector that is not finite")
        vector_bytes = as_bytes(vector, waiting.request.dimensions, self._facts.normalize)
        return self._finish(waiting, FinishReason.STOP, vector=vector_bytes)

    def _finish(
        self, waiting: _Waiting, reason: FinishReason, *, vector: bytes = b"", error: str | None = None
    ) -> RequestOutput:
        self._metrics.num_finished[reason.value] += 1
        self._metrics.e2el_s.observe(self._clock() - waiting.arrival_time_s)
        request = waiting.request
        return RequestOutput(
            request.request_id, finish_reason=reason, num_prompt_tokens=len(request.prompt_token_ids), error=error,
            vector=vector,
        )  # fmt: skip

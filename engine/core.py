"""EngineCore: the step loop's body. schedule -> execute -> update, and every accepted request ends exactly once."""

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from engine.continuation import Continuation
from engine.embedding import EngineRequest
from engine.errors import InvalidRequest, QueueFull
from engine.metrics import EngineMetrics
from engine.observer import StepObserver
from engine.outputs import EngineStats, RequestOutput, TokenLogprobs
from engine.request import FINISHED, FinishReason, GenerationRequest, Request
from engine.response import Ending, Response
from engine.sampling.grammar.cache import Grammars
from engine.sampling.grammar.compiler import Grammar
from engine.scheduling.base import Scheduler
from engine.scheduling.plan import PendingStep, StepPlan, StepResult
from engine.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


class Runner(Protocol):
    """What carries out a plan: tensors in service (`engine.runner`), a cost model in simulation."""

    def submit(self, plan: StepPlan) -> PendingStep:
        """Begins `plan`. Plans are carried out in the order in which they are submitted."""


@dataclass(frozen=True, slots=True)
class _InFlight:
    """A step that has been submitted; its tokens are not known yet."""

    plan: StepPlan
    requests: Mapping[str, Request]
    pending: PendingStep
    begun_s: float


class EngineCore:
    """One engine without threads: call `step` while `has_work`.

    Single-threaded by contract; AsyncEngine's step thread is the only caller in service.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        tokenizer: Tokenizer,
        *,
        model_name: str,
        vocab_size: int,
        eos_token_ids: frozenset[int],
        max_num_waiting: int,
        clock: Callable[[], float],
        overlap: bool = False,
        check_every_step: bool = False,
        observer: StepObserver | None = None,
        grammars: Grammars | None = None,
        prepare: Callable[[], bool] = lambda: False,
    ) -> None:
        """With `overlap` a step is planned and submitted before the results of the one before it are awaited.

        Ends are then seen one step late, and what that step computed for them is dropped; nothing else changes.
        """
        self._scheduler = scheduler
        self._runner = runner
        self._tokenizer = tokenizer
        self._model_name = model_name
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._max_num_waiting = max_num_waiting
        self._clock = clock
        self._num_ahead = 1 if overlap else 0          # steps in flight after a call of `step`
        self._check_every_step = check_every_step
        self._observer = observer
        self._prepare = prepare
        self.grammars = grammars
        self._in_flight: deque[_InFlight] = deque()
        self._responses: dict[str, Response] = {}      # request_id -> what has been said to the client
        self._held: dict[str, Grammar] = {}            # request_id -> its grammar, which the runner will ask for
        self._outputs: list[RequestOutput] = []        # said since the last step, by aborts
        self._wait_until_s: float | None = None
        self._metrics = EngineMetrics()

    @property
    def has_work(self) -> bool:
        return bool(self._responses or self._in_flight)

    @property
    def wait_until_s(self) -> float | None:
        """Set after a step that had nothing to compute: when the next may have, unless a request comes or goes before.

        Infinite if time alone changes nothing. None: call `step` again at once.
        """
        return self._wait_until_s

    def add_request(self, generation: EngineRequest, /) -> None:
        """Accept `generation`. Raises RequestError if it can never be served, or not now.

        Waits for its grammar to be compiled: whoever calls this between two steps has that done before.
        """
        if not isinstance(generation, GenerationRequest):
            raise InvalidRequest("this model generates text; it gives no embeddings", param="model")
        if generation.request_id in self._responses:
            raise InvalidRequest(f"request id {generation.request_id!r} is in use", param="request_id")
        if not generation.prompt_token_ids:
            raise InvalidRequest("the prompt is empty", param="prompt")
        self._check_vocabulary("prompt", generation.prompt_token_ids)
        self._check_vocabulary("logit_bias", generation.sampling.logit_bias)
        self._check_vocabulary("allowed_token_ids", generation.sampling.allowed_token_ids or ())
        if self._scheduler.num_waiting >= self._max_num_waiting:
            raise QueueFull(f"{self._max_num_waiting} requests are waiting already; try again later")
        grammar = self._grammar(generation)
        self._scheduler.add(Request(generation, arrival_time_s=self._clock()))
        self._responses[generation.request_id] = Response(generation, self._tokenizer, self._eos_token_ids)
        if grammar is not None:
            self._held[generation.request_id] = grammar

    def _grammar(self, generation: GenerationRequest) -> Grammar | None:
        spec = generation.sampling.grammar
        if spec is None:
            return None
        if self.grammars is None:
            raise InvalidRequest("this engine follows no grammars", param=spec.param)
        return self.grammars.get(spec)

    def abort(self, request_id: str) -> None:
        """End the request, at whatever stage it is. Unknown and finished ids are ignored: aborts race with ends."""
        if request_id in self._responses:
            self._outputs.append(self._finish(request_id, Ending(FinishReason.ABORT)))

    def abort_all(self) -> list[RequestOutput]:
        for request_id in tuple(self._responses):
            self.abort(request_id)
        return self.take_outputs()

    def drain(self) -> list[Continuation]:
        """End all unfinished requests and return them as values that any engine can resume."""
        while self._in_flight:
            self._outputs += self._resolve(self._in_flight.popleft())
        continuations = [
            Continuation(response.resumable(self._scheduler.requests[request_id].token_ids))
            for request_id, response in self._responses.items()
        ]
        self._outputs = self.abort_all()
        return continuations

    def take_outputs(self) -> list[RequestOutput]:
        """Outputs not returned by a step: last words of requests aborted between steps."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def step(self) -> list[RequestOutput]:
        """Begin one step, and return what the requests gained by those that are over."""
        begun_s = self._clock()
        plan = self._scheduler.schedule()
        num_ahead = 0
        if plan.num_scheduled_tokens:
            self._metrics.step_time_s["schedule"] += self._clock() - begun_s
            pending = self._runner.submit(plan)
            self._in_flight.append(_InFlight(plan, self._scheduler.advance(plan), pending, begun_s))
            num_ahead = self._num_ahead
        is_waiting = not self._in_flight
        outputs = self.take_outputs()
        while len(self._in_flight) > num_ahead:
            outputs += self._resolve(self._in_flight.popleft())
        until_s = self._scheduler.wait_until_s
        self._wait_until_s = (math.inf if until_s is None else until_s) if is_waiting else None
        if self._check_every_step:
            self.check_integrity()
        return outputs

    def prepare(self) -> bool:
        """For when there is no work: a little of what steps would do at their first time; False: nothing is left."""
        return self._prepare() or (self.grammars is not None and self.grammars.prepare())

    def check_integrity(self) -> None:
        self._scheduler.check_integrity()

    def close(self) -> None:
        """The last call: whoever observes the steps may finish."""
        if self._observer is not None:
            self._observer.close()
        if self.grammars is not None:
            self.grammars.close()

    def report_death(self, error: BaseException) -> None:
        log.error("engine died in a step of %d requests", len(self._responses), exc_info=error)

    def stats(self) -> EngineStats:
        """A snapshot; safe to call from another thread, since it only reads whole values."""
        scheduler, metrics = self._scheduler, self._metrics
        kv = scheduler.kv
        return EngineStats(
            model=self._model_name,
            num_requests_running=len(scheduler.running),
            num_requests_waiting=scheduler.num_waiting,
            num_tokens_waiting=scheduler.num_uncomputed_tokens,
            kv_blocks_total=kv.num_blocks,
            kv_blocks_used=kv.num_used_blocks,
            kv_blocks_cached=kv.num_cached_blocks,
            kv_capacity_tokens=kv.capacity_tokens,
            max_model_len=scheduler.max_model_len,
            num_preemptions=scheduler.num_preemptions,
            num_prompt_tokens=metrics.num_prompt_tokens,
            num_generated_tokens=metrics.num_generated_tokens,
            prefix_cache_queries=scheduler.prefix_cache_queries,
            prefix_cache_hits=scheduler.prefix_cache_hits,
            num_finished=dict(metrics.num_finished),
            num_steps=metrics.num_steps,
            step_time_s=dict(metrics.step_time_s),
            ttft_s=metrics.ttft_s.snapshot(),
            itl_s=metrics.itl_s.snapshot(),
            e2el_s=metrics.e2el_s.snapshot(),
            queue_time_s=metrics.queue_time_s.snapshot(),
        )

    def _check_vocabulary(self, param: str, token_ids: Iterable[int]) -> None:
        for token_id in token_ids:
            if not 0 <= token_id < self._vocab_size:
                raise InvalidRequest(f"token id {token_id} is not in [0, {self._vocab_size})", param=param)

    # --------------------------------------------------------------------------------------------------- resolve

    def _resolve(self, step: _InFlight) -> list[RequestOutput]:
        """Await the step's results and tell its requests. Those that ended since it was submitted gain nothing."""
        plan, result = step.plan, step.pending.result()
        now_s = self._clock()
        if self._observer is not None:
            self._observer.on_step(plan, result.sampled, step.begun_s, now_s)
        for request_id, prompt_logprobs in result.prompt_logprobs.items():
            if not step.requests[request_id].is_finished:
                self._responses[request_id].add_prompt_logprobs(plan.start[request_id] + 1, prompt_logprobs)
        outputs = [
            self._finish(request_id, Ending(FinishReason.ERROR, error=error))
            for request_id, error in result.errors.items()
            if not step.requests[request_id].is_finished
        ]
        scored = [
            request_id for request_id, request in self._scheduler.ending.items()
            if request.max_tokens == 0 and step.requests.get(request_id) is request and request_id in result.sampled
        ]  # fmt: skip
        outputs += [self._finish(request_id, Ending(FinishReason.LENGTH)) for request_id in scored]
        self._scheduler.resolve(plan, step.requests, result.sampled)
        outputs += self._tokens(step.requests, result, now_s)
        self._record(result, now_s)
        return outputs

    def _record(self, result: StepResult, resolved_s: float) -> None:
        self._metrics.num_steps += 1
        times = self._metrics.step_time_s
        times["output"] += self._clock() - resolved_s
        for part, duration_s in result.times_s.items():
            times[part] += duration_s

    def _tokens(self, requests: Mapping[str, Request], result: StepResult, now_s: float) -> list[RequestOutput]:
        """What the requests gain that have sampled. One pass, with few calls: this is half of the loop's own time."""
        outputs = []
        gaining = {
            request_id: request for request_id in result.sampled
            if (request := requests[request_id]).status is not FINISHED
        }  # fmt: skip
        self._metrics.tokens_sampled(gaining.values(), now_s)
        for request_id, request in gaining.items():
            token_id = result.sampled[request_id]
            entry = result.logprobs.get(request_id)
            logprobs = () if entry is None else (entry,)
            response = self._responses[request_id]
            text, ending = response.push(token_id)
            if ending is None:
                if request_id in result.complete:
                    ending = Ending(FinishReason.STOP)
                elif request.is_at_limit:
                    ending = Ending(FinishReason.LENGTH)
            if ending is None:
                outputs.append(response.output(request, (token_id,), text, logprobs))
            else:
                outputs.append(self._finish(request_id, ending, (token_id,), text, logprobs))
        return outputs

    def _finish(
        self, request_id: str, ending: Ending, token_ids: tuple[int, ...] = (), text: str = "",
        logprobs: tuple[TokenLogprobs, ...] = (),
    ) -> RequestOutput:  # fmt: skip
        response = self._responses.pop(request_id)
        self._held.pop(request_id, None)
        request = self._scheduler.requests[request_id]
        self._scheduler.finish(request_id, ending.reason)
        now_s = self._clock()
        self._metrics.request_finished(request, now_s)
        if self._observer is not None:
            self._observer.on_finish(request, now_s)
        return response.last_output(request, ending, token_ids, text, logprobs)

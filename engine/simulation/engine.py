"""SimulatedEngine: the thinnest step loop around the scheduler of the service.

Scheduler, policy, KVCacheManager and Request are those of the service; `engine.core` is not. What it does beside them
for every token (text, stop checks, outputs, histograms) tells a simulation nothing and took more than half of its
time. `tests/engine/simulation` holds the two side by side: equal plans at equal times, to the last token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from engine.kv_cache.manager import KVCacheManager
from engine.observer import StepObserver
from engine.request import FinishReason, GenerationRequest, Request
from engine.sampling.params import SamplingParams
from engine.scheduling.base import Scheduler
from engine.scheduling.plan import StepPlan
from engine.scheduling.policy import Policy
from engine.simulation.clock import VirtualClock
from engine.simulation.cost import StepCost
from engine.simulation.records import Arrival, RequestRecord, StepRecord, step_record
from engine.simulation.runner import SimulatedRunner


@dataclass(slots=True)
class _Live:
    """A request that has not ended."""

    arrival: Arrival
    request: Request
    output_len: int                                # where it ends: as it arrived, or less where the context ends it
    token_times_s: list[float] = field(default_factory=list)


class SimulatedStep(NamedTuple):
    """What one call of `step` did. A tuple, as `StepRows` is."""

    plan: StepPlan
    begun_s: float
    ended_s: float
    finished: Sequence[RequestRecord]
    record: StepRecord | None                      # if asked for


class SimulatedEngine:
    """One engine in virtual time: `add`, and `step` while it `has_work`. Several may be driven side by side.

    The clock is the engine's own; whoever feeds it moves the clock on when a step computes nothing.
    """

    def __init__(
        self,
        policy: Policy,
        kv: KVCacheManager,
        cost: StepCost,
        *,
        max_model_len: int,
        observer: StepObserver | None = None,
    ) -> None:
        self.clock = VirtualClock()
        self.scheduler = Scheduler(policy, kv, max_model_len=max_model_len, clock=self.clock)
        self._runner = SimulatedRunner(cost, self.clock, kv.block_size)
        self._observer = observer
        self._live: dict[str, _Live] = {}          # request_id -> what became of it so far
        self._sampling: dict[int, SamplingParams] = {}    # max_tokens -> the one value that all such requests share
        self._num_added = self._num_steps = 0

    @property
    def has_work(self) -> bool:
        return bool(self._live)

    @property
    def wait_until_s(self) -> float | None:
        """After a step that computed nothing: when the policy wants to be asked again; None: after the next arrival."""
        return self.scheduler.wait_until_s

    def add(self, arrival: Arrival) -> str:
        """Accepts `arrival`, at its own time even where a step has made it late; returns its request id.

        Raises RequestError if it can never be served.
        """
        index, self._num_added = self._num_added, self._num_added + 1
        request_id = arrival.request_id or str(index)
        generation = GenerationRequest(
            request_id,
            # Negative ids: no workload's, so no prefix is shared by chance.
            arrival.prompt_token_ids or (-1 - index,) * arrival.prompt_len,
            self._sampling_of(arrival.output_len if arrival.max_tokens is None else arrival.max_tokens),
            priority=arrival.priority,
            tenant=arrival.tenant,
        )
        request = Request(generation, arrival.arrival_s)
        self.scheduler.add(request)
        most = min(request.max_tokens, self.scheduler.max_num_tokens - arrival.prompt_len)
        self._live[request_id] = _Live(arrival, request, min(arrival.output_len, most))
        return request_id

    def step(self, *, record: bool = False) -> SimulatedStep | None:
        """Computes one step, which takes its time. None, and no time has passed, if there is nothing to compute."""
        scheduler = self.scheduler
        begun_s = self.clock.now_s
        plan = scheduler.schedule()
        if not plan.num_scheduled_tokens:
            return None
        requests = scheduler.advance(plan)
        sampled = self._runner.sample(plan)
        scheduler.resolve(plan, requests, sampled)
        now_s = self.clock.now_s
        ended = []
        for request_id in sampled:
            live = self._live[request_id]
            times_s = live.token_times_s
            times_s.append(now_s)
            if len(times_s) >= live.output_len:
                ended.append(live)
        if self._observer is not None:
            self._observer.on_step(plan, sampled, begun_s, now_s)
        found = step_record(self._num_steps, scheduler, plan, begun_s, now_s) if record else None
        self._num_steps += 1
        return SimulatedStep(plan, begun_s, now_s, [self._finish(live, now_s) for live in ended], found)

    def check_integrity(self) -> None:
        self.scheduler.check_integrity()

    def _finish(self, live: _Live, now_s: float) -> RequestRecord:
        request = live.request
        is_cut = live.output_len < live.arrival.output_len or live.output_len >= request.max_tokens
        self.scheduler.finish(request.request_id, FinishReason.LENGTH if is_cut else FinishReason.STOP)
        del self._live[request.request_id]
        if self._observer is not None:
            self._observer.on_finish(request, now_s)
        return RequestRecord(
            request.request_id,
            live.arrival,
            request.first_scheduled_time_s,
            tuple(live.token_times_s),
            now_s,
            request.num_cached_tokens,
            request.num_preemptions,
        )

    def _sampling_of(self, max_tokens: int) -> SamplingParams:
        sampling = self._sampling.get(max_tokens)
        if sampling is None:
            sampling = self._sampling[max_tokens] = SamplingParams(max_tokens, temperature=0.0, ignore_eos=True)
        return sampling

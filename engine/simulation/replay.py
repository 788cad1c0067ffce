"""Replays arrivals through a simulated engine, from the first to the last token of all of them."""

import heapq
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from engine.errors import RequestError
from engine.simulation.engine import SimulatedEngine, SimulatedStep
from engine.simulation.records import Arrival, RequestRecord, StepRecord

FollowUp = Callable[[RequestRecord], Arrival | None]


@dataclass(frozen=True, slots=True)
class ReplaySummary:
    """A replay in a few figures."""

    num_requests: int                              # ended, refused ones among them
    num_refused: int
    num_steps: int
    num_prompt_tokens: int                         # of requests that ran
    num_output_tokens: int
    num_preemptions: int
    duration_s: float                              # of the engine's time, to the last end
    records: tuple[RequestRecord, ...]             # in the order of their ends; empty where `on_request` took them


def replay(
    engine: SimulatedEngine,
    arrivals: Iterable[Arrival],
    *,
    on_request: Callable[[RequestRecord], None] | None = None,
    on_step: Callable[[StepRecord], None] | None = None,
    follow_up: FollowUp | None = None,
) -> ReplaySummary:
    """Runs `arrivals`, sorted by `arrival_s`, to completion.

    `on_request` takes each record as the request ends, so that a million of them need no memory; without it they
    are kept. `on_step` costs time for each running request of each step. `follow_up` makes closed loops: what it
    returns for a request that has ended arrives at its own `arrival_s`, or at once where that has passed.

    Raises ValueError for arrivals out of order, RuntimeError if the policy leaves requests alone for ever.
    """
    return _Replay(engine, arrivals, on_request, on_step, follow_up).run()


class _Replay:
    """One replay under way."""

    def __init__(
        self,
        engine: SimulatedEngine,
        arrivals: Iterable[Arrival],
        on_request: Callable[[RequestRecord], None] | None,
        on_step: Callable[[StepRecord], None] | None,
        follow_up: FollowUp | None,
    ) -> None:
        self.engine = engine
        self.records: list[RequestRecord] = []
        self._arrivals = iter(arrivals)
        self._next = next(self._arrivals, None)
        self._follow_ups: list[tuple[float, int, Arrival]] = []      # a heap; equal times in the order they were made
        self._on_request = self.records.append if on_request is None else on_request
        self._on_step = on_step
        self._follow_up = follow_up
        self._num_requests = self._num_refused = self._num_steps = self._num_made = 0
        self._num_prompt_tokens = self._num_output_tokens = self._num_preemptions = 0
        self._end_s = 0.0

    def run(self) -> ReplaySummary:
        engine = self.engine
        clock = engine.clock
        next_s = self._next_arrival_s()
        while True:
            if next_s <= clock.now_s:
                next_s = self._admit_due()
            if not engine.has_work:
                if math.isinf(next_s):
                    break
                clock.advance_to(next_s)
            elif (step := engine.step(record=self._on_step is not None)) is not None:
                self._book(step)
                if self._follow_ups:
                    next_s = self._next_arrival_s()
            else:
                self._wait(next_s)
        engine.check_integrity()
        return ReplaySummary(
            self._num_requests, self._num_refused, self._num_steps, self._num_prompt_tokens, self._num_output_tokens,
            self._num_preemptions, self._end_s, tuple(self.records),
        )  # fmt: skip

    def _next_arrival_s(self) -> float:
        planned_s = math.inf if self._next is None else self._next.arrival_s
        return min(planned_s, self._follow_ups[0][0]) if self._follow_ups else planned_s

    def _admit_due(self) -> float:
        """Hands over all that has arrived by now, in order of arrival; returns when the next comes."""
        now_s = self.engine.clock.now_s
        while (next_s := self._next_arrival_s()) <= now_s:
            arrival = self._next
            if arrival is None or arrival.arrival_s > next_s:
                arrival = heapq.heappop(self._follow_ups)[2]
            else:
                self._next = next(self._arrivals, None)
                if self._next is not None and self._next.arrival_s < arrival.arrival_s:
                    raise ValueError(f"an arrival at {self._next.arrival_s} s after one at {arrival.arrival_s} s")
            try:
                self.engine.add(arrival)
            except RequestError as error:
                name = arrival.request_id or f"refused-{self._num_refused}"
                self._num_refused += 1
                self._end(RequestRecord(name, arrival, None, (), now_s, error=str(error)))
        return next_s

    def _book(self, step: SimulatedStep) -> None:
        if self._on_step is not None and step.record is not None:
            self._on_step(step.record)
        self._num_steps += 1
        for record in step.finished:
            self._num_prompt_tokens += record.arrival.prompt_len
            self._num_output_tokens += record.num_output_tokens
            self._num_preemptions += record.num_preemptions
            self._end(record)

    def _end(self, record: RequestRecord) -> None:
        self._num_requests += 1
        self._end_s = max(self._end_s, record.end_s)
        self._on_request(record)
        if self._follow_up is not None and (arrival := self._follow_up(record)) is not None:
            self._num_made += 1
            heapq.heappush(self._follow_ups, (max(arrival.arrival_s, record.end_s), self._num_made, arrival))

    def _wait(self, next_s: float) -> None:
        """A step computed nothing: only time or an arrival can change that."""
        wait_until_s = self.engine.wait_until_s
        until_s = next_s if wait_until_s is None else min(next_s, wait_until_s)
        if math.isinf(until_s) or until_s <= self.engine.clock.now_s:
            waiting = len(self.engine.scheduler.waiting)
            raise RuntimeError(f"the policy computes nothing, for ever: {waiting} wait, {wait_until_s=}, {next_s=}")
        self.engine.clock.advance_to(until_s)

"""A day of requests through one simulated engine: what it was like, and how long it took to find out."""

import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.simulation.build import plan_simulation
from engine.simulation.records import Arrival, RequestRecord
from engine.simulation.replay import ReplaySummary, replay

DAY_S = 86_400.0
_CHUNK = 10_000                # arrivals drawn at a time


@dataclass(frozen=True, slots=True)
class Day:
    """Requests spread over 24 hours: Poisson arrivals, prompts uniform up to twice their mean, outputs exponential."""

    num_requests: int
    mean_prompt_len: int
    mean_output_len: int
    seed: int
    hours: float | None = None                     # the day is left after so many; None: when all have come

    def arrivals(self) -> Iterator[Arrival]:
        """Drawn as they are needed: a million of them take no memory."""
        rng = np.random.default_rng(self.seed)
        now_s, most = 0.0, 2 * self.mean_prompt_len - 1
        for begin in range(0, self.num_requests, _CHUNK):
            count = min(_CHUNK, self.num_requests - begin)
            times_s = now_s + np.cumsum(rng.exponential(DAY_S / self.num_requests, count))
            prompts = rng.integers(1, most, count, endpoint=True)
            outputs = np.maximum(1, np.rint(rng.exponential(self.mean_output_len, count))).astype(np.int64)
            now_s = float(times_s[-1])
            drawn = zip(prompts.tolist(), outputs.tolist(), times_s.tolist(), strict=True)
            for prompt_len, output_len, arrival_s in drawn:
                if self.hours is not None and arrival_s > 3600 * self.hours:
                    return
                yield Arrival(prompt_len, output_len, arrival_s)


class _Figures:
    """What a day leaves: sums and one number a request, whatever the number of tokens."""

    def __init__(self) -> None:
        self.ttft_s = array("d")
        self.tpot_s = array("d")
        self.num_wrong = 0                         # requests that did not deliver exactly what they should

    def take(self, record: RequestRecord) -> None:
        times_s, arrival = record.token_times_s, record.arrival
        self.num_wrong += len(times_s) != arrival.output_len
        if times_s:
            self.ttft_s.append(times_s[0] - arrival.arrival_s)
        if len(times_s) > 1:
            self.tpot_s.append((times_s[-1] - times_s[0]) / (len(times_s) - 1))


@dataclass(frozen=True, slots=True)
class DayResult:
    day: Day
    summary: ReplaySummary
    num_wrong: int
    ttft_ms: dict[str, float]                      # p50, p99
    tpot_ms: dict[str, float]
    wall_s: float
    cpu_s: float                                   # of one core

    def __str__(self) -> str:
        done = self.summary
        return (
            f"{done.num_requests} requests in {done.duration_s:.0f} s, {done.num_output_tokens} output tokens, "
            f"{done.num_steps} steps, {done.num_preemptions} preemptions\n"
            f"TTFT p50 {self.ttft_ms['p50']:.1f} ms, p99 {self.ttft_ms['p99']:.1f} ms; "
            f"TPOT p50 {self.tpot_ms['p50']:.2f} ms, p99 {self.tpot_ms['p99']:.2f} ms; "
            f"requests with other than their tokens: {self.num_wrong}; refused: {done.num_refused}\n"
            f"replayed in {self.wall_s:.0f} s ({self.cpu_s:.0f} s of one core): "
            f"{1e6 * self.cpu_s / done.num_output_tokens:.2f} µs an output token, "
            f"{1e6 * self.cpu_s / done.num_steps:.1f} µs a step"
        )


def run_day(day: Day, scheduler: dict[str, Any], *, model: str, device: str) -> DayResult:
    """Raises ConfigError if such an engine could not run."""
    engine = plan_simulation(scheduler, model=model, device=device).build()
    figures = _Figures()
    begun_s, begun_cpu_s = time.perf_counter(), time.process_time()
    summary = replay(engine, day.arrivals(), on_request=figures.take)
    wall_s, cpu_s = time.perf_counter() - begun_s, time.process_time() - begun_cpu_s
    return DayResult(
        day, summary, figures.num_wrong, _percentiles(figures.ttft_s), _percentiles(figures.tpot_s), wall_s, cpu_s
    )


def _percentiles(seconds: "array[float]") -> dict[str, float]:
    return {f"p{percent}": 1e3 * float(np.percentile(seconds, percent)) for percent in (50, 99)}

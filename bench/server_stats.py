"""What a system says of itself while a workload runs: KV usage, preemptions, batch occupancy, step-time split.

A sample maps names to numbers: those of the fields of EngineStats, and `step_time_s.<part>` for the parts of a step.
It comes from `/metrics` over HTTP or from EngineStats in process; a name it lacks leaves its figures None.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from prometheus_client.parser import text_string_to_metric_families

from engine.api import EngineStats

Sample = Mapping[str, float]

_METRICS = MappingProxyType({                  # name at /metrics -> name in a sample
    "conveyor_kv_blocks_used": "kv_blocks_used",
    "conveyor_kv_blocks_total": "kv_blocks_total",
    "conveyor_num_requests_running": "num_requests_running",
    "conveyor_num_requests_waiting": "num_requests_waiting",
    "conveyor_num_preemptions_total": "num_preemptions",
    "conveyor_generated_tokens_total": "num_generated_tokens",
    "conveyor_prefix_cache_hits_total": "prefix_cache_hits",
    "conveyor_prefix_cache_queries_total": "prefix_cache_queries",
    "conveyor_steps_total": "num_steps",
    "conveyor_step_seconds_total": "step_time_s",
})


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """A run as the system under test counted it; None where it does not tell."""

    kv_cache_usage_mean: float | None = None
    kv_cache_usage_max: float | None = None
    num_requests_running_mean: float | None = None     # batch occupancy
    num_requests_running_max: float | None = None
    num_requests_waiting_max: float | None = None
    tokens_per_step: float | None = None               # generated
    num_preemptions: float | None = None
    prefix_cache_hit_rate: float | None = None         # of the prompt tokens looked up
    step_time_ms: Mapping[str, float] = field(default_factory=dict)   # part -> mean per step
    memory_bytes_per_s: float | None = None            # read right before the run, by a benchmark and not the system


def sample_of_stats(stats: EngineStats) -> Sample:
    sample = {
        "kv_blocks_used": stats.kv_blocks_used,
        "kv_blocks_total": stats.kv_blocks_total,
        "num_requests_running": stats.num_requests_running,
        "num_requests_waiting": stats.num_requests_waiting,
        "num_preemptions": stats.num_preemptions,
        "num_generated_tokens": stats.num_generated_tokens,
        "prefix_cache_hits": stats.prefix_cache_hits,
        "prefix_cache_queries": stats.prefix_cache_queries,
        "num_steps": stats.num_steps,
    }
    return sample | {f"step_time_s.{part}": seconds for part, seconds in stats.step_time_s.items()}


def sample_of_prometheus(text: str) -> Sample:
    """The sample in a page of our metrics; several replicas answer with a line each and are added up."""
    sample: defaultdict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for metric in family.samples:
            if name := _METRICS.get(metric.name):
                part = metric.labels.get("part")
                sample[f"{name}.{part}" if part else name] += metric.value
    return sample


class StatsSampler:
    """Samples a system before, during and after a run: `async with StatsSampler(read) as sampler: …`."""

    def __init__(self, read: Callable[[], Awaitable[Sample]], *, interval_s: float = 1.0) -> None:
        self._read = read
        self._interval_s = interval_s
        self._samples: list[Sample] = []

    async def __aenter__(self) -> "StatsSampler":
        self._samples.append(await self._read())
        self._task = asyncio.create_task(self._keep_sampling())
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._samples.append(await self._read())

    async def _keep_sampling(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            self._samples.append(await self._read())

    def figures(self) -> ServerFigures:
        return figures_of(self._samples)


def figures_of(samples: list[Sample]) -> ServerFigures:
    """Gauges from the samples during the run, counters from the difference between the last and the first."""
    first, last = samples[0], samples[-1]
    during = samples[1:-1] or samples

    def gauge(name: str) -> list[float]:
        return [sample[name] for sample in during if name in sample]

    def growth(name: str) -> float | None:
        return last[name] - first[name] if name in first and name in last else None

    usage = [
        sample["kv_blocks_used"] / sample["kv_blocks_total"] for sample in during if sample.get("kv_blocks_total")
    ]
    running, waiting = gauge("num_requests_running"), gauge("num_requests_waiting")
    steps = growth("num_steps")
    parts = {name.partition(".")[2]: growth(name) for name in last if name.startswith("step_time_s.")}
    return ServerFigures(
        kv_cache_usage_mean=_mean(usage),
        kv_cache_usage_max=max(usage, default=None),
        num_requests_running_mean=_mean(running),
        num_requests_running_max=max(running, default=None),
        num_requests_waiting_max=max(waiting, default=None),
        tokens_per_step=_ratio(growth("num_generated_tokens"), steps),
        num_preemptions=growth("num_preemptions"),
        prefix_cache_hit_rate=_ratio(growth("prefix_cache_hits"), growth("prefix_cache_queries")),
        step_time_ms={part: 1000 * total / steps for part, total in parts.items() if total is not None and steps},
    )


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _ratio(count: float | None, of: float | None) -> float | None:
    return count / of if count is not None and of else None

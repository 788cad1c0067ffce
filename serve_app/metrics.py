"""EngineStats as metrics: one table, told in two ways, to Ray's metrics by each replica and at /metrics for all."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector
from ray.serve import metrics as ray_metrics

from engine.api import EngineStats, Histogram

MetricFamily = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


@dataclass(frozen=True, slots=True)
class Metric:
    """A number of EngineStats, or several told apart by one label."""

    name: str
    help: str
    value: Callable[[EngineStats], float | Mapping[str, float]]
    label: str | None = None

    def values(self, stats: EngineStats) -> Mapping[str, float]:      # label value -> number
        value = self.value(stats)
        return value if isinstance(value, Mapping) else {"": value}

    def labels(self, label_value: str) -> dict[str, str]:
        return {} if self.label is None else {self.label: label_value}


GAUGES = (
    Metric("conveyor_num_requests_running", "Requests in the running batch.", lambda s: s.num_requests_running),
    Metric("conveyor_num_requests_waiting", "Requests waiting for admission.", lambda s: s.num_requests_waiting),
    Metric("conveyor_num_tokens_waiting", "Tokens still to compute: the load.", lambda s: s.num_tokens_waiting),
    Metric("conveyor_kv_blocks_total", "Blocks of the KV pool.", lambda s: s.kv_blocks_total),
    Metric("conveyor_kv_blocks_used", "KV blocks that requests hold.", lambda s: s.kv_blocks_used),
    Metric("conveyor_kv_blocks_cached", "Idle KV blocks that hold a prefix.", lambda s: s.kv_blocks_cached),
    Metric("conveyor_kv_cache_usage", "Share of KV blocks that requests hold.", lambda s: s.kv_cache_usage),
    Metric("conveyor_heartbeat_age_seconds", "Since the step loop last came round.", lambda s: s.heartbeat_age_s),
)
COUNTERS = (
    Metric("conveyor_num_preemptions", "Requests preempted for lack of KV blocks.", lambda s: s.num_preemptions),
    Metric("conveyor_prompt_tokens", "Prompt tokens of requests that began.", lambda s: s.num_prompt_tokens),
    Metric("conveyor_generated_tokens", "Tokens sampled.", lambda s: s.num_generated_tokens),
    Metric("conveyor_prefix_cache_queries", "Prompt tokens looked up.", lambda s: s.prefix_cache_queries),
    Metric("conveyor_prefix_cache_hits", "Prompt tokens found.", lambda s: s.prefix_cache_hits),
    Metric("conveyor_requests_finished", "Requests by finish reason.", lambda s: s.num_finished, "reason"),
    Metric("conveyor_steps", "Steps of the engine.", lambda s: s.num_steps),
    Metric("conveyor_step_seconds", "Time in each part of a step.", lambda s: s.step_time_s, "part"),
)




@dataclass(frozen=True, slots=True)
class HistogramMetric:
    """Durations of EngineStats."""

    name: str
    help: str
    value: Callable[[EngineStats], Histogram | None]

    def as_counters(self) -> tuple[Metric, Metric]:
        return (
            Metric(f"{self.name}_sum", self.help, lambda stats: _total(self.value(stats))),
            Metric(f"{self.name}_count", self.help, lambda stats: _count(self.value(stats))),
        )


HISTOGRAMS = (
    HistogramMetric("conveyor_ttft_seconds", "Time to first token.", lambda s: s.ttft_s),
    HistogramMetric("conveyor_itl_seconds", "Inter-token latency.", lambda s: s.itl_s),
    HistogramMetric("conveyor_e2el_seconds", "End-to-end latency of a request.", lambda s: s.e2el_s),
    HistogramMetric("conveyor_queue_time_seconds", "Time until first scheduled.", lambda s: s.queue_time_s),
)


def exposition(fleet: Mapping[str, EngineStats], model: str) -> bytes:
    """`fleet`, replica id -> stats, in the Prometheus text format."""
    return generate_latest(_FleetCollector(fleet, model))


class _FleetCollector(Collector):
    def __init__(self, fleet: Mapping[str, EngineStats], model: str) -> None:
        self._fleet = fleet
        self._model = model

    def collect(self) -> Iterator[MetricFamily]:
        for gauge in GAUGES:
            yield self._filled(GaugeMetricFamily, gauge)
        for counter in COUNTERS:
            yield self._filled(CounterMetricFamily, counter)
        for histogram in HISTOGRAMS:
            yield self._histogram(histogram)

    def _filled(self, family_class: type[GaugeMetricFamily | CounterMetricFamily], metric: Metric) -> MetricFamily:
        extra = [] if metric.label is None else [metric.label]
        family = family_class(metric.name, metric.help, labels=["model", "replica", *extra])
        for replica, stats in self._fleet.items():
            for label_value, number in metric.values(stats).items():
                family.add_metric([self._model, replica, *metric.labels(label_value).values()], number)
        return family

    def _histogram(self, metric: HistogramMetric) -> HistogramMetricFamily:
        family = HistogramMetricFamily(metric.name, metric.help, labels=["model", "replica"])
        for replica, stats in self._fleet.items():
            histogram = metric.value(stats)
            if histogram is not None:
                family.add_metric([self._model, replica], _buckets(histogram), histogram.total)
        return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """(upper bound, observations up to it), cumulative as Prometheus wants them."""
    buckets, count = [], 0
    for bound, observations in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        count += observations
        buckets.append((bound, float(count)))
    return buckets


class RayMetrics:
    """One replica's stats as Ray metrics, which Ray exports as `ray_<name>` from each node.

    Ray's histograms take single observations only, so a histogram goes as two counters: its sum and its count.
    """

    def __init__(self) -> None:
        counters = [*COUNTERS, *(counter for histogram in HISTOGRAMS for counter in histogram.as_counters())]
        self._gauges = {metric: _ray_metric(ray_metrics.Gauge, metric) for metric in GAUGES}
        self._counters = {metric: _ray_metric(ray_metrics.Counter, metric) for metric in counters}
        self._told: dict[tuple[str, str], float] = {}  # (metric, label value) -> number told so far

    def report(self, stats: EngineStats) -> None:
        for metric, gauge in self._gauges.items():
            for label_value, number in metric.values(stats).items():
                gauge.set(number, {"model": stats.model} | metric.labels(label_value))
        for metric, counter in self._counters.items():
            for label_value, number in metric.values(stats).items():
                gained = number - self._told.get((metric.name, label_value), 0)
                if gained > 0:
                    counter.inc(gained, {"model": stats.model} | metric.labels(label_value))
                    self._told[metric.name, label_value] = number


def _ray_metric(kind: Any, metric: Metric) -> Any:
    tag_keys = ("model",) if metric.label is None else ("model", metric.label)
    return kind(metric.name, metric.help, tag_keys)


def _total(histogram: Histogram | None) -> float:
    return 0.0 if histogram is None else histogram.total


def _count(histogram: Histogram | None) -> float:
    return 0.0 if histogram is None else sum(histogram.counts)

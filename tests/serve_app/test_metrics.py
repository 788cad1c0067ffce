from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine.api import EngineStats, Histogram
from serve_app import metrics
from serve_app.metrics import RayMetrics, exposition

STATS = EngineStats(
    model="m",
    num_requests_running=3,
    kv_blocks_total=8,
    kv_blocks_used=2,
    num_generated_tokens=40,
    num_finished={"stop": 5, "length": 1},
    ttft_s=Histogram((0.1, 1.0), (4, 1, 1), 3.5),
)


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(name: str, replica: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset({"model": "m", "replica": replica, **labels}.items())


def test_exposition_labels_each_replica() -> None:
    found = samples(exposition({"a": STATS, "b": EngineStats()}, "m").decode())
    assert found[of("conveyor_num_requests_running", "a")] == 3
    assert found[of("conveyor_num_requests_running", "b")] == 0
    assert found[of("conveyor_kv_cache_usage", "a")] == 0.25
    assert found[of("conveyor_generated_tokens_total", "a")] == 40
    assert found[of("conveyor_requests_finished_total", "a", reason="stop")] == 5


def test_histograms_are_cumulative() -> None:
    found = samples(exposition({"a": STATS}, "m").decode())
    buckets = [found[of("conveyor_ttft_seconds_bucket", "a", le=bound)] for bound in ("0.1", "1.0", "+Inf")]
    assert buckets == [4, 5, 6]
    assert found[of("conveyor_ttft_seconds_count", "a")] == 6
    assert found[of("conveyor_ttft_seconds_sum", "a")] == 3.5


def test_ray_counters_are_told_what_is_new_only(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, float, dict[str, str]]] = []

    class Recorded:
        def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]) -> None:
            self.name = name

        def record(self, value: float, tags: dict[str, str]) -> None:
            told.append((self.name, value, tags))

        set = inc = record

    class FakeRayMetrics:
        Gauge: Any = Recorded
        Counter: Any = Recorded

    monkeypatch.setattr(metrics, "ray_metrics", FakeRayMetrics)
    ray_metrics = RayMetrics()
    ray_metrics.report(STATS)
    assert ("conveyor_num_requests_running", 3, {"model": "m"}) in told
    assert ("conveyor_requests_finished", 5, {"model": "m", "reason": "stop"}) in told
    assert ("conveyor_ttft_seconds_sum", 3.5, {"model": "m"}) in told
    told.clear()
    ray_metrics.report(STATS)
    assert {name for name, *_ in told} == {gauge.name for gauge in metrics.GAUGES}

"""What a benchmark prints and saves: the ratio first, then the figures, and a JSON file that holds everything."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.metrics import Distribution, Objective
from bench.result_file import RESULTS, stamped, write_result
from bench.server_stats import ServerFigures
from bench.systems import Measurement

SCHEMA = "conveyor-bench/1"


@dataclass(frozen=True, slots=True)
class Ratio:
    """Output tokens/s of one system over another's, repeat by repeat, from runs that took turns."""

    workload: str
    system: str
    against: str
    of_repeats: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.of_repeats)

    def __str__(self) -> str:
        repeats = ", ".join(f"{ratio:.2f}" for ratio in self.of_repeats)
        of = f"{self.system} / {self.against}"
        return f"{self.median:.2f}x  {of}, output tokens/s, {self.workload} (repeats: {repeats})"


def ratios(measurements: Sequence[Measurement], *, against: str) -> list[Ratio]:
    """Of every other system to `against`, for each workload. Pairs with a failed request give no ratio."""
    paired: dict[tuple[str, str], list[float]] = {}
    base = {
        (m.workload.name, m.repeat): m.summary.output_tokens_per_s
        for m in measurements
        if m.system == against and not m.summary.num_failed
    }
    for measurement in measurements:
        name = measurement.workload.name
        reference = base.get((name, measurement.repeat))
        if measurement.system != against and reference and not measurement.summary.num_failed:
            ratio = measurement.summary.output_tokens_per_s / reference
            paired.setdefault((name, measurement.system), []).append(ratio)
    return [Ratio(name, system, against, tuple(of_repeats)) for (name, system), of_repeats in paired.items()]


def result_document(
    measurements: Sequence[Measurement],
    descriptions: Mapping[str, Mapping[str, Any]],
    objective: Objective,
    found: Sequence[Ratio] = (),
) -> dict[str, Any]:
    """Everything a figure needs to be published or checked, ready for JSON."""
    return {
        **stamped(SCHEMA),
        "objective": asdict(objective),
        "systems": {name: dict(description) for name, description in descriptions.items()},
        "ratios": [asdict(ratio) | {"median": ratio.median} for ratio in found],
        "measurements": [_measurement_json(measurement) for measurement in measurements],
    }


def _measurement_json(measurement: Measurement) -> dict[str, Any]:
    workload = measurement.workload
    return {
        "system": measurement.system,
        "repeat": measurement.repeat,
        "workload": {
            "name": workload.name,
            "seed": workload.seed,
            "parameters": dict(workload.parameters),
            "fingerprint": workload.fingerprint,
        },
        "summary": asdict(measurement.summary),
        "server": asdict(measurement.server),
        "peak_pss_bytes": measurement.peak_pss_bytes,
        "records": [record.to_json() for record in measurement.records],
    }


def save(document: Mapping[str, Any], *, folder: Path = RESULTS) -> Path:
    """Write the document under a name that says when, what and of whom; returns the path."""
    measurements = document["measurements"]
    workloads = "+".join(dict.fromkeys(m["workload"]["name"] for m in measurements))
    systems = "-vs-".join(dict.fromkeys(m["system"] for m in measurements))
    return write_result(document, f"{workloads}-{systems}", folder=folder)


def comparison_text(measurements: Sequence[Measurement], found: Sequence[Ratio]) -> str:
    """Ratios, then one line per run."""
    lines = [str(ratio) for ratio in found]
    lines += ["", f"{'workload':<12}{'system':<22}{'repeat':>6}{'out tok/s':>11}{'req/s':>8}{'TTFT p50':>10}"]
    lines[-1] += f"{'TPOT p50':>10}{'E2EL p50':>10}{'failed':>8}{'peak PSS':>10}   (latencies in ms)"
    for m in measurements:
        s = m.summary
        lines.append(
            f"{m.workload.name:<12}{m.system:<22}{m.repeat:>6}{s.output_tokens_per_s:>11.1f}{s.requests_per_s:>8.2f}"
            f"{_p50(s.ttft_ms):>10}{_p50(s.tpot_ms):>10}{_p50(s.e2el_ms):>10}{s.num_failed:>8}"
            f"{_gib(m.peak_pss_bytes):>10}"
        )
    return "\n".join(lines)


def run_text(measurement: Measurement) -> str:
    """All figures of one run, a line each."""
    s = measurement.summary
    workload = measurement.workload
    rows = [
        ("workload", f"{workload.name}, seed {workload.seed}, fingerprint {workload.fingerprint}"),
        ("parameters", ", ".join(f"{name}={value}" for name, value in workload.parameters.items())),
        ("requests", f"{s.num_requests}, of which {s.num_failed} failed"),
        ("duration", f"{s.duration_s:.1f} s"),
        ("output tokens/s", f"{s.output_tokens_per_s:.2f}"),
        ("total tokens/s", f"{s.total_tokens_per_s:.2f}"),
        ("requests/s", f"{s.requests_per_s:.3f}"),
        ("goodput requests/s", f"{s.goodput_requests_per_s:.3f}"),
        ("TTFT ms", _latencies(s.ttft_ms)),
        ("ITL ms", _latencies(s.itl_ms)),
        ("TPOT ms", _latencies(s.tpot_ms)),
        ("E2EL ms", _latencies(s.e2el_ms)),
        *_server_rows(measurement.server),
        ("peak PSS", _gib(measurement.peak_pss_bytes)),
    ]
    return "\n".join(f"{name:<24}{value}" for name, value in rows)


def _server_rows(server: ServerFigures) -> list[tuple[str, str]]:
    running = f"mean {_number(server.num_requests_running_mean)}, max {_number(server.num_requests_running_max)}"
    step = ", ".join(f"{part} {milliseconds:.2f}" for part, milliseconds in server.step_time_ms.items())
    return [
        ("KV usage", f"mean {_share(server.kv_cache_usage_mean)}, max {_share(server.kv_cache_usage_max)}"),
        ("preemptions", _number(server.num_preemptions)),
        ("batch occupancy", f"{running} requests; {_number(server.tokens_per_step)} tokens generated per step"),
        ("waiting", f"max {_number(server.num_requests_waiting_max)}"),
        ("prefix cache hits", f"{_share(server.prefix_cache_hit_rate)} of prompt tokens"),
        ("step time ms", step or "n/a"),
    ]


def _latencies(latency: Distribution | None) -> str:
    if latency is None:
        return "n/a"
    return f"mean {latency.mean:.1f}, p50 {latency.p50:.1f}, p90 {latency.p90:.1f}, p99 {latency.p99:.1f}"


def _p50(latency: Distribution | None) -> str:
    return "n/a" if latency is None else f"{latency.p50:.0f}"


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4g}"


def _share(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.1%}"


def _gib(num_bytes: int | None) -> str:
    return "n/a" if num_bytes is None else f"{num_bytes / 2**30:.2f} GiB"

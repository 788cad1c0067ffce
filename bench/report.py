"""What a benchmark prints and saves: the figures of each run, and a JSON file that holds everything."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.metrics import Distribution, Objective
from bench.result_file import RESULTS, stamped, write_result
from bench.server_stats import ServerFigures
from bench.systems import Measurement

SCHEMA = "conveyor-bench/1"


def result_document(
    measurements: Sequence[Measurement],
    descriptions: Mapping[str, Mapping[str, Any]],
    objective: Objective,
) -> dict[str, Any]:
    """Everything a figure needs to be published or checked, ready for JSON."""
    return {
        **stamped(SCHEMA),
        "objective": asdict(objective),
        "systems": {name: dict(description) for name, description in descriptions.items()},
        "measurements": [measurement_json(measurement) for measurement in measurements],
    }


def measurement_json(measurement: Measurement) -> dict[str, Any]:
    """One run with every request's record, from which its figures can be computed again."""
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


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4g}"


def _share(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.1%}"


def _gib(num_bytes: int | None) -> str:
    return "n/a" if num_bytes is None else f"{num_bytes / 2**30:.2f} GiB"

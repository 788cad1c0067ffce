"""The engine alone, in a process that holds nothing else: workloads in on stdin, its plan and its rates out on stdout.

A process of its own, for pages that the benchmark shared with the server would make the server look smaller.
"""

import asyncio
import contextlib
import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.metrics import Objective
from bench.replay import RequestFailed
from bench.systems import EngineSystem, System, measure, warm_up
from bench.workloads import Workload
from engine.api import EngineConfig, preflight
from engine.config import prepare_process

_ROOT = Path(__file__).resolve().parents[2]
_MODULE = "bench.serving_costs.in_process"
NO_OBJECTIVE = Objective(math.inf, math.inf)


@dataclass(frozen=True, slots=True)
class InProcess:
    """What the child found: the engine's memory plan, and output tokens/s of each workload."""

    plan: Mapping[str, Any]                        # the fields of PreflightReport
    output_tokens_per_s: tuple[float, ...]


def run_in_process(config: Mapping[str, Any], workloads: Sequence[Workload]) -> InProcess:
    """Raises RequestFailed if a request failed, or the child."""
    order = {"config": dict(config), "workloads": [workload.to_json() for workload in workloads]}
    done = subprocess.run(
        [sys.executable, "-m", _MODULE], cwd=_ROOT, input=json.dumps(order), text=True, stdout=subprocess.PIPE,
        check=False,
    )  # fmt: skip
    if done.returncode:
        raise RequestFailed(f"the engine in process ended with status {done.returncode}")
    found = json.loads(done.stdout.splitlines()[-1])
    return InProcess(found["plan"], tuple(found["output_tokens_per_s"]))


async def _serve(order: Mapping[str, Any]) -> dict[str, Any]:
    config = EngineConfig.model_validate(order["config"])
    plan = preflight(config)
    workloads = [Workload.from_json(values) for values in order["workloads"]]
    rates: list[float] = []
    if workloads:
        async with EngineSystem.start(config) as engine:
            rates = await stream_rates(engine, workloads)
    return {"plan": asdict(plan), "output_tokens_per_s": rates}


async def stream_rates(system: System, workloads: Sequence[Workload]) -> list[float]:
    """Output tokens/s of each workload, after a warm-up. Raises RequestFailed if a request failed."""
    await warm_up(system, workloads[0])
    rates = []
    for workload in workloads:
        measurement = await measure(system, workload, NO_OBJECTIVE)
        if measurement.summary.num_failed:
            error = next(record.error for record in measurement.records if record.error)
            raise RequestFailed(f"{system.name} failed {measurement.summary.num_failed} requests: {error}")
        rates.append(measurement.summary.output_tokens_per_s)
    return rates


def main() -> None:
    prepare_process()
    order = json.loads(sys.stdin.read())
    with contextlib.redirect_stdout(sys.stderr):
        found = asyncio.run(_serve(order))
    print(json.dumps(found))


if __name__ == "__main__":
    main()

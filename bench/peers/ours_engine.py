"""Our own engine without Ray and HTTP, in a process of its own as any peer: what serving costs is the difference.

Run by `python -m bench.peers`.
"""

import argparse
import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from bench.metrics import RequestRecord
from bench.peers.memory_floor import memory_bytes_per_s_before, step_weight_bytes
from bench.peers.protocol import serve_workloads, take_stdout
from bench.systems import EngineSystem
from bench.workloads import Workload
from engine.api import EngineConfig


def describe(config: EngineConfig) -> dict[str, Any]:
    from bench.environment import versions

    return {
        "dtype": config.dtype,
        "num_threads": config.num_threads,
        "kv_tokens": config.kv_cache.capacity_tokens,
        "step_weight_bytes": step_weight_bytes(config),
        "versions": {name: version for name, version in versions().items() if name in ("torch", "numba")},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True, help="an EngineConfig as JSON")
    args = parser.parse_args()
    out = take_stdout()
    config = EngineConfig.model_validate(json.loads(args.config))
    with asyncio.Runner() as runner:
        started = EngineSystem.start(config)
        system = runner.run(started.__aenter__())
        try:
            serve_workloads(out, describe(config), partial(_run, runner, system, config.num_threads or 1))
        finally:
            runner.run(started.__aexit__(None, None, None))


def _run(
    runner: asyncio.Runner, system: EngineSystem, num_threads: int, workload: Workload,
    on_record: Callable[[RequestRecord], None],
) -> dict[str, Any]:  # fmt: skip
    memory_bytes_per_s = memory_bytes_per_s_before(workload, num_threads)
    _, figures = runner.run(system.run(workload, on_record))
    return asdict(replace(figures, memory_bytes_per_s=memory_bytes_per_s))


if __name__ == "__main__":
    main()

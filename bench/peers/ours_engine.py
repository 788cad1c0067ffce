"""Our own engine without Ray and HTTP, in a process of its own as any peer: what serving costs is the difference.

Run by `python -m bench.peers`. Also measures what a single stream is held against: memory bandwidth, bytes of a step.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from bench.metrics import RequestRecord
from bench.peers.protocol import serve_workloads, take_stdout
from bench.systems import EngineSystem
from bench.workloads import Workload
from engine.api import EngineConfig

_PROBE_BYTES = 2**28
_ROUNDS = 5


def read_bandwidth_bytes_per_s(num_threads: int) -> float:
    """The best of a few large sums and copies (a copy reads and writes), on as many threads as the engine has."""
    import torch

    torch.set_num_threads(num_threads)
    source = torch.ones(_PROBE_BYTES // 4)
    target = torch.empty_like(source)
    best = 0.0
    for _ in range(_ROUNDS):
        for work, num_bytes in ((source.sum, _PROBE_BYTES), (lambda: target.copy_(source), 2 * _PROBE_BYTES)):
            begun_s = time.perf_counter()
            work()
            best = max(best, num_bytes / (time.perf_counter() - begun_s))
    return best


def step_weight_bytes(config: EngineConfig) -> float:
    """Weights that a decode step reads: every product's, the embedding table not."""
    from bench.engine import step_bytes
    from engine.device import resolve_device
    from engine.model.description import describe_model
    from engine.model.hub import resolve

    return step_bytes(describe_model(resolve(config.model), config, str(resolve_device(config))), 0)


def describe(config: EngineConfig) -> dict[str, Any]:
    from bench.environment import versions

    return {
        "dtype": config.dtype,
        "num_threads": config.num_threads,
        "kv_tokens": config.kv_cache.capacity_tokens,
        "step_weight_bytes": step_weight_bytes(config),
        "bandwidth_bytes_per_s": read_bandwidth_bytes_per_s(config.num_threads or 1),
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
            serve_workloads(out, describe(config), partial(_run, runner, system))
        finally:
            runner.run(started.__aexit__(None, None, None))


def _run(
    runner: asyncio.Runner, system: EngineSystem, workload: Workload, on_record: Callable[[RequestRecord], None]
) -> dict[str, Any]:
    _, figures = runner.run(system.run(workload, on_record))
    return asdict(figures)


if __name__ == "__main__":
    main()

"""A single stream against memory: reading the weights of a step takes so long, whatever computes with them."""

import time
from collections.abc import Iterable

import psutil

from bench.systems import Measurement
from bench.workloads import Workload
from engine.api import EngineConfig

_IDLE_PERCENT = 10.0
_IDLE_WITHIN_S = 30.0                     # on a machine that others keep busy there is no better moment


def step_weight_bytes(config: EngineConfig) -> float:
    """Weights that a decode step reads: every product's, with scales; the embedding table not."""
    from bench.engine import step_bytes
    from engine.build import describe_configured

    return step_bytes(describe_configured(config), 0)


def memory_bytes_per_s_before(workload: Workload, num_threads: int) -> float | None:
    """What a single stream about to run is held against: memory shared with others is not as fast all day.

    An engine that has only been warmed up still records what it will replay, and would be measured beside it.
    """
    if workload.name != "single":
        return None
    from bench.timing import read_bytes_per_s

    _wait_until_idle()
    return read_bytes_per_s(num_threads=num_threads)


def _wait_until_idle() -> None:
    end_s = time.perf_counter() + _IDLE_WITHIN_S
    while psutil.cpu_percent(interval=0.5) > _IDLE_PERCENT and time.perf_counter() < end_s:
        pass


def floor_shares(measurements: Iterable[Measurement], system: str, weight_bytes: float) -> tuple[float, ...]:
    """Of each single stream: the time that memory takes for a step's weights, as a share of the time per token."""
    return tuple(
        weight_bytes / m.server.memory_bytes_per_s * 1000 / m.summary.tpot_ms.p50
        for m in measurements
        if m.system == system and m.server.memory_bytes_per_s and not m.summary.num_failed and m.summary.tpot_ms
    )

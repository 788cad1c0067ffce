"""A single stream against memory: reading the weights of a step takes so long, whatever computes with them."""

from collections.abc import Iterable

from bench.systems import Measurement
from bench.workloads import Workload
from engine.api import EngineConfig


def step_weight_bytes(config: EngineConfig) -> float:
    """Weights that a decode step reads: every product's, with scales; the embedding table not."""
    from bench.engine import step_bytes
    from engine.build import describe_configured

    return step_bytes(describe_configured(config), 0)


def memory_bytes_per_s_before(workload: Workload, num_threads: int) -> float | None:
    """What a single stream about to run is held against: memory shared with others is not as fast all day.

    Over in a second, and with it its array: before a MemorySampler looks at this process for the second time.
    """
    from bench.timing import read_bytes_per_s

    return read_bytes_per_s(num_threads=num_threads) if workload.name == "single" else None


def floor_shares(measurements: Iterable[Measurement], system: str, weight_bytes: float) -> tuple[float, ...]:
    """Of each single stream: the time that memory takes for a step's weights, as a share of the time per token."""
    return tuple(
        weight_bytes / m.server.memory_bytes_per_s * 1000 / m.summary.tpot_ms.p50
        for m in measurements
        if m.system == system and m.server.memory_bytes_per_s and not m.summary.num_failed and m.summary.tpot_ms
    )

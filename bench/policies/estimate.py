"""How long a sweep on the real engine will take: its own schedulers in virtual time, on a cost probed in seconds."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

from bench.metrics import Objective
from bench.policies.measured import MeasuredTarget
from bench.policies.runs import Case
from bench.policies.simulated import arrival
from bench.workloads import Workload, WorkloadRequest
from engine.build import build_policy
from engine.config import SchedulerConfig
from engine.device import CPU_DEFAULTS
from engine.kv_cache.manager import KVCacheManager
from engine.simulation.composition import StepRows
from engine.simulation.engine import SimulatedEngine
from engine.simulation.replay import replay

_PROBE = Case("chunked", {"max_num_batched_tokens": 256})


@dataclass(frozen=True, slots=True)
class LinearCost:
    """A step takes a constant and a time for each row: crude, and enough to plan an afternoon."""

    constant_s: float
    row_s: float

    def step_s(self, rows: StepRows) -> float:
        return self.constant_s + self.row_s * rows.num_rows


def probe(target: MeasuredTarget) -> LinearCost:
    """Two small runs: one of decodes, one of prompts."""
    decodes = _probe_s(target, num_requests=4, prompt_len=8, output_len=24)
    prompts = _probe_s(target, num_requests=8, prompt_len=60, output_len=1)
    # decodes: 23 steps of 4 rows and one of 32; prompts: 2 steps of 240 rows in all
    row_s = max((prompts - 2 * decodes / 24) / (480 - 2 * 124 / 24), 1e-6)
    return LinearCost(max((decodes - 124 * row_s) / 24, 1e-6), row_s)


def _probe_s(target: MeasuredTarget, *, num_requests: int, prompt_len: int, output_len: int) -> float:
    requests = tuple(
        WorkloadRequest(i, tuple(range(1 + i, 1 + i + prompt_len)), output_len) for i in range(num_requests)
    )
    begun_s = time.perf_counter()
    run = target.run(_PROBE, Workload("probe", 0, {}, requests), Objective(1.0, 1.0))
    return min(run.summary.duration_s, time.perf_counter() - begun_s)


def estimate_s(cost: LinearCost, target: MeasuredTarget, runs: Iterable[tuple[Case, Workload]]) -> float:
    """Seconds that all of `runs` will take; engines are built in between, which is not counted."""
    return sum(_run_s(cost, target, case, workload) for case, workload in runs)


def _run_s(cost: LinearCost, target: MeasuredTarget, case: Case, workload: Workload) -> float:
    config = SchedulerConfig.model_validate({"policy": case.policy, **case.parameters})
    policy, _ = build_policy(config, CPU_DEFAULTS)
    block_size = target.block_size or policy.default_block_size or CPU_DEFAULTS.block_size
    num_blocks = (target.capacity_tokens or 2**20) // block_size
    kv = KVCacheManager(num_blocks, block_size, prefix_caching=False)
    engine = SimulatedEngine(policy, kv, cost, max_model_len=target.max_model_len or 2**20)
    return replay(engine, [arrival(request) for request in workload.requests]).duration_s

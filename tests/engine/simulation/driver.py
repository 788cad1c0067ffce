"""Simulated engines of the tiny model, and traffic for them."""

import random

from engine.kv_cache.manager import KVCacheManager
from engine.observer import StepObserver
from engine.scheduling.policies import policy_class
from engine.scheduling.policy import Limits
from engine.simulation.cost import Roofline, StepCost
from engine.simulation.engine import SimulatedEngine
from engine.simulation.records import Arrival
from tests.engine.simulation.models import TINY, UNIT

LIMITS = Limits(max_num_batched_tokens=64, max_num_seqs=8)
COST = Roofline(TINY, UNIT, weights="float16", kv_cache="float16")


def engine(
    policy: str = "chunked",
    *,
    num_blocks: int = 64,
    block_size: int = 4,
    max_model_len: int = 100,
    prefix_caching: bool = False,
    cost: StepCost = COST,
    observer: StepObserver | None = None,
    **parameters: object,
) -> SimulatedEngine:
    kind = policy_class(policy)
    return SimulatedEngine(
        kind(kind.Parameters.model_validate(parameters), LIMITS),
        KVCacheManager(num_blocks, block_size, prefix_caching=prefix_caching),
        cost,
        max_model_len=max_model_len,
        observer=observer,
    )


def traffic(count: int, *, mean_gap_s: float, seed: int = 0) -> list[Arrival]:
    draw = random.Random(seed)
    now_s, arrivals = 0.0, []
    for _ in range(count):
        now_s += draw.expovariate(1 / mean_gap_s)
        arrivals.append(Arrival(draw.randint(1, 40), draw.randint(1, 30), now_s))
    return arrivals

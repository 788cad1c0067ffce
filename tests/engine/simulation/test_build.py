import pytest

from engine.config import KVCacheConfig
from engine.errors import ConfigError
from engine.simulation.build import plan_simulation, simulate_core
from engine.simulation.records import Arrival
from engine.simulation.replay import replay


def test_the_pool_is_what_the_service_would_plan():
    """39.6 GiB, of which 90 %: 23.9 GiB of OPT-13B, 1.6 of a step's working memory, the rest at 0.8 MB a token."""
    plan = plan_simulation(model="opt-13b", device="sim:a100-40gb")
    memory = plan.memory
    assert memory.budget_bytes == int(40_536 * 2**20 * 0.9)
    assert memory.kv_bytes_per_token == 2 * 40 * 5120 * 2
    assert memory.num_blocks * 64 == 13_184 < 64 * 256
    built = plan.build()
    assert built.scheduler.kv.num_blocks == memory.num_blocks and built.scheduler.max_model_len == 2048
    assert not built.scheduler.kv.prefix_caching


def test_a_plan_serves_engines_that_share_nothing():
    plan = plan_simulation(model="tiny", device="l4", kv_cache=KVCacheConfig(capacity_tokens=640))
    first, second = plan.build(), plan.build()
    replay(first, [Arrival(10, 5)])
    assert first.clock.now_s > 0 == second.clock.now_s
    assert first.scheduler.policy is not second.scheduler.policy


def test_policy_parameters_and_block_size_are_taken():
    built = simulate_core(
        {"policy": "chunked", "max_num_batched_tokens": 128}, model="tiny", device="h100",
        kv_cache=KVCacheConfig(block_size=16, capacity_tokens=1600, prefix_caching=True),
    )  # fmt: skip
    assert (built.scheduler.kv.num_blocks, built.scheduler.kv.block_size) == (100, 16)
    assert built.scheduler.policy.max_num_batched_tokens == 128
    assert built.scheduler.kv.prefix_caching


def test_what_does_not_fit_is_refused_as_in_the_service():
    with pytest.raises(ConfigError, match="does not fit"):
        simulate_core(model="opt-13b", device="l4")
    with pytest.raises(ConfigError, match="no simulated device"):
        simulate_core(model="opt-13b", device="a100")
    with pytest.raises(ValueError, match="batch_size"):
        simulate_core({"policy": "chunked", "batch_size": 4}, model="tiny", device="l4")

"""Builds a simulated engine as `engine.build` builds a real one: model, policy, memory plan, in that order."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.config import EngineConfig, KVCacheConfig, SchedulerConfig
from engine.errors import ConfigError
from engine.kv_cache.manager import KVCacheManager
from engine.model.shapes import PREFIX, SHAPES
from engine.observer import StepObserver
from engine.simulation.cost import Roofline, StepCost
from engine.simulation.devices import DeviceModel, parse_device
from engine.simulation.engine import SimulatedEngine
from engine.simulation.measured import MeasuredDevice

if TYPE_CHECKING:
    from engine.device import DeviceDefaults
    from engine.model.capacity import MemoryPlan
    from engine.model.description import ModelDescription

NO_PREFIXES = KVCacheConfig(prefix_caching=False)      # arrivals without token ids share none

_DEFAULT = SchedulerConfig()


@dataclass(frozen=True, slots=True)
class SimulationPlan:
    """What will be simulated. One plan serves any number of engines, each with a policy and a pool of its own."""

    config: EngineConfig
    device: DeviceModel | MeasuredDevice
    defaults: "DeviceDefaults"
    description: "ModelDescription"
    memory: "MemoryPlan"
    cost: StepCost

    def build(self, *, observer: StepObserver | None = None) -> SimulatedEngine:
        from engine.build import build_policy

        policy, _ = build_policy(self.config.scheduler, self.defaults)
        kv = KVCacheManager(
            self.memory.num_blocks, self.memory.block_size, prefix_caching=self.config.kv_cache.prefix_caching
        )
        max_model_len = self.description.max_model_len
        return SimulatedEngine(policy, kv, self.cost, max_model_len=max_model_len, observer=observer)


def plan_simulation(
    scheduler: SchedulerConfig | Mapping[str, Any] = _DEFAULT,
    *,
    model: str,
    device: str,
    dtype: str = "auto",
    max_model_len: int | None = None,
    kv_cache: KVCacheConfig = NO_PREFIXES,
) -> SimulationPlan:
    """Decides what a simulated engine is, by the code that plans a real one.

    `model` is a shape ("opt-13b") or whatever the YAML may name; `device` is for `parse_device`. The pool is what the
    device's memory leaves beside the weights, or `kv_cache.capacity_tokens`.

    Raises ConfigError, naming the field, if such an engine could not run.
    """
    from engine.build import build_policy  # torch: slow to load, and records are read without it
    from engine.device import CPU_DEFAULTS, GPU_DEFAULTS
    from engine.model.capacity import plan_memory
    from engine.model.description import describe_model
    from engine.model.hub import resolve

    simulated = parse_device(device)
    is_cpu = isinstance(simulated, MeasuredDevice)
    config = EngineConfig.model_validate({
        "model": PREFIX + model if model in SHAPES else model,
        "scheduler": scheduler.model_dump() if isinstance(scheduler, SchedulerConfig) else dict(scheduler),
        "dtype": simulated.dtype if isinstance(simulated, MeasuredDevice) else dtype,
        "max_model_len": max_model_len,
        "kv_cache": kv_cache,
    })
    description = describe_model(resolve(config.model), config, "cpu" if is_cpu else "cuda")
    defaults = CPU_DEFAULTS if is_cpu else GPU_DEFAULTS
    policy, limits = build_policy(config.scheduler, defaults)
    memory = plan_memory(
        description,
        kv_cache,
        block_size=kv_cache.block_size or policy.default_block_size or defaults.block_size,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_num_seqs=limits.max_num_seqs,
        free_bytes=simulated.memory_bytes,
        max_kv_bytes=defaults.max_kv_bytes,
    )
    return SimulationPlan(config, simulated, defaults, description, memory, _cost(simulated, description))


def simulate_core(
    scheduler: SchedulerConfig | Mapping[str, Any] = _DEFAULT,
    *,
    model: str,
    device: str,
    dtype: str = "auto",
    max_model_len: int | None = None,
    kv_cache: KVCacheConfig = NO_PREFIXES,
    observer: StepObserver | None = None,
) -> SimulatedEngine:
    """One engine of `plan_simulation`."""
    plan = plan_simulation(
        scheduler, model=model, device=device, dtype=dtype, max_model_len=max_model_len, kv_cache=kv_cache
    )
    return plan.build(observer=observer)


def _cost(device: DeviceModel | MeasuredDevice, description: "ModelDescription") -> StepCost:
    name = description.resolved.name
    if isinstance(device, DeviceModel):
        kv_cache = str(description.dtypes.kv_cache).removeprefix("torch.")
        return Roofline(description.spec, device, weights=description.dtypes.weights, kv_cache=kv_cache)
    if device.model != name:
        raise ConfigError(f"device: {device.name} was measured with the model {device.model}, not with {name}")
    return device

"""Which device an engine runs on, and what suits it."""

import os
from dataclasses import dataclass

import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.scheduling.policy import CPU_LIMITS, GPU_LIMITS, Limits


@dataclass(frozen=True, slots=True)
class DeviceDefaults:
    """What suits a kind of device where the configuration and the policy leave it open."""

    limits: Limits
    block_size: int                        # tokens; the attention kernel's best
    max_kv_bytes: int | None               # of the pool, unless the configuration sets its capacity


CPU_DEFAULTS = DeviceDefaults(CPU_LIMITS, block_size=32, max_kv_bytes=4 * 2**30)   # leave memory to others
GPU_DEFAULTS = DeviceDefaults(GPU_LIMITS, block_size=64, max_kv_bytes=None)        # a GPU is ours alone


def resolve_device(config: EngineConfig) -> torch.device:
    """The device that `device: auto | cpu | cuda` means here. Raises ConfigError for a GPU that is not there."""
    if config.device == "cpu":
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda", 0)
    if config.device == "cuda":
        raise ConfigError("device: cuda was asked for, but torch finds no usable GPU")
    return torch.device("cpu")


def device_defaults(device: torch.device) -> DeviceDefaults:
    return CPU_DEFAULTS if device.type == "cpu" else GPU_DEFAULTS


def use_threads(config: EngineConfig) -> int:
    """Give torch the CPU threads of `config`, by default the cores this process may run on; returns their number."""
    num_threads = config.num_threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(num_threads)
    return num_threads

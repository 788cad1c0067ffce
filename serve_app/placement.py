"""Placement: which device an engine runs on and what its replica reserves, decided from the cluster's nodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from engine.api import ConfigError
from serve_app.config import AppConfig


@dataclass(frozen=True, slots=True)
class Placement:
    """Where LLMServer's replicas go. The replica itself asks for nothing; its EngineActor takes the whole bundle."""

    device: Literal["cuda", "cpu"]
    bundle: Mapping[str, float]                    # resource -> amount that one replica reserves
    max_replicas: int                              # without an override in the YAML


def place(config: AppConfig, nodes: Sequence[Mapping[str, float]]) -> Placement:
    """The placement of `config` on `nodes`, each given as its resources. Raises ConfigError if no node will do."""
    num_gpus = sum(int(node.get("GPU", 0)) for node in nodes)
    if config.device == "cuda" and not num_gpus:
        raise ConfigError("device: 'cuda' was asked for, but no node of the Ray cluster has a GPU; use 'auto' or 'cpu'")
    if num_gpus and config.device != "cpu":
        return Placement("cuda", {"CPU": 1, "GPU": 1}, max_replicas=num_gpus)
    most_cpus = max((int(node.get("CPU", 0)) for node in nodes), default=0)
    if not most_cpus:
        raise ConfigError("device: no node of the Ray cluster has a CPU to give to the engine")
    if config.num_threads is not None and config.num_threads > most_cpus:
        raise ConfigError(f"num_threads: {config.num_threads} asked for; the largest node has {most_cpus} CPUs")
    return Placement("cpu", {"CPU": config.num_threads or most_cpus}, max_replicas=1)

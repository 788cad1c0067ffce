"""Engines that have done what is done once: no measurement pays for it."""

from engine.build import build_core
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.model.loader import LoadedModel
from engine.observer import StepObserver


def build_prepared_core(
    config: EngineConfig, *, model: LoadedModel | None = None, observer: StepObserver | None = None
) -> EngineCore:
    """One that has recorded all that it replays, as a service has after its first idle seconds. Raises ConfigError."""
    core = build_core(config, model=model, observer=observer)
    while core.prepare():
        pass
    return core

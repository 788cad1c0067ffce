"""The application with a fault on demand: a prompt that holds FAULT makes its engine's step loop raise."""

from functools import partial

from ray.serve import Application

from engine.api import Engine, EngineConfig
from engine.async_engine import AsyncEngine
from engine.build import build_core
from engine.core import EngineCore
from engine.scheduling.plan import PendingStep, StepPlan
from serve_app.app import assemble
from serve_app.config import AppConfig
from serve_app.remote_engine import remote_engine

FAULT = 7                                                  # a token id


class FaultyRunner:
    def __init__(self, core: EngineCore) -> None:
        self._runner = core._runner

    def submit(self, plan: StepPlan) -> PendingStep:
        if any(FAULT in token_ids for _, token_ids in plan.new.values()):
            raise RuntimeError("the device was lost")
        return self._runner.submit(plan)


def build_faulty_core(config: EngineConfig) -> EngineCore:
    core = build_core(config)
    core._runner = FaultyRunner(core)
    return core


def create_faulty_engine(config: EngineConfig) -> Engine:
    return AsyncEngine(config, build=build_faulty_core)


def build_app(args: AppConfig) -> Application:
    return assemble(args, partial(remote_engine, create=create_faulty_engine))

"""StepObserver: who is told of every step and every end, in the step thread."""

from collections.abc import Mapping
from typing import Protocol

from engine.request import Request
from engine.scheduling.plan import StepPlan


class StepObserver(Protocol):
    def on_step(self, plan: StepPlan, sampled: Mapping[str, int], begun_s: float, ended_s: float) -> None:
        """A step's results are in. `sampled` is by request id; times are the engine's clock."""

    def on_finish(self, request: Request, now_s: float) -> None:
        """`request` has ended; its `finish_reason` says how."""

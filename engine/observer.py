"""StepObserver: who is told of every step and every end, in the step thread."""

from collections.abc import Mapping
from typing import Protocol

from engine.request import Request
from engine.scheduling.plan import StepPlan


class StepObserver(Protocol):
    """What it does in `on_step` and `on_finish` delays the next step; it must not raise."""

    def on_step(self, plan: StepPlan, sampled: Mapping[str, int], begun_s: float, ended_s: float) -> None:
        """A step's results are in; the ends that they bring come after. `sampled` is by request id; times are the
        engine's clock. With overlapped steps some of the requests may have ended already."""

    def on_finish(self, request: Request, now_s: float) -> None:
        """`request` has ended; its `finish_reason` says how."""

    def close(self) -> None:
        """The engine stops: nothing more will come."""

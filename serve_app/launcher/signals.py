"""Signals to the launcher: noted when they come, acted on between two steps."""

import signal
import time
from collections.abc import Callable
from types import FrameType

ECHO_S = 0.5                  # make and `timeout` send on what reaches the launcher anyway: that is one signal


class Interrupted(Exception):
    """SIGINT or SIGTERM before the server was ready."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_status = 128 + number


class Signals:
    """SIGINT and SIGTERM, in the order they came."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.received: list[int] = []
        self._clock = clock
        self._last_s = -ECHO_S

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.note)

    def note(self, number: int, frame: FrameType | None = None) -> None:
        if self._clock() - self._last_s >= ECHO_S:
            self.received.append(number)
        self._last_s = self._clock()

    def raise_if_any(self) -> None:
        if self.received:
            raise Interrupted(self.received[0])

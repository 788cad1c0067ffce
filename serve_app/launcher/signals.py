"""Signals to the launcher: noted when they come, acted on between two steps."""

import signal
from types import FrameType


class Interrupted(Exception):
    """SIGINT or SIGTERM before the server was ready."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_status = 128 + number


class Signals:
    """SIGINT and SIGTERM, noted in the order they came."""

    def __init__(self) -> None:
        self.received: list[int] = []
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)

    def raise_if_any(self) -> None:
        if self.received:
            raise Interrupted(self.received[0])

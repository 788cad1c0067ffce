"""VirtualClock: time that passes only when it is told to. The simulator's one source of time."""


class VirtualClock:
    """Seconds since the start of a simulation; called, as every injected clock of the engine is."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, duration_s: float) -> None:
        """Let `duration_s` pass. Raises ValueError for a negative duration: time never runs back."""
        if not duration_s >= 0:
            raise ValueError(f"a step lasts {duration_s} s")
        self.now_s += duration_s

    def advance_to(self, time_s: float) -> None:
        """Let time pass until `time_s`; none where that is in the past."""
        self.now_s = max(self.now_s, time_s)

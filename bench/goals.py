"""Figures held against their goals, and the table that says which are reached."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Goal:
    """One figure and its bound: at most `bound`, or at least where `at_least`. None: not measured, not reached."""

    name: str
    value: float | None
    bound: float
    unit: str = ""
    at_least: bool = False

    @property
    def is_reached(self) -> bool:
        if self.value is None:
            return False
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    @property
    def verdict(self) -> str:
        return "not measured" if self.value is None else "reached" if self.is_reached else "NOT reached"

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"is_reached": self.is_reached}

    def __str__(self) -> str:
        value = "n/a" if self.value is None else f"{self.value:.4g}"
        sign = "≥" if self.at_least else "≤"
        return f"{self.name:<58}{value:>10} {self.unit:<7}{sign} {self.bound:<8.4g}{self.verdict}"


def goal_table(goals: Sequence[Goal]) -> str:
    return "\n".join([f"{'figure':<58}{'value':>10} {'':<7}{'goal':<10}", *map(str, goals)])

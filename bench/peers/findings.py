"""What a comparison has found so far, and the figures that its tables and its picture take from it."""

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.goals import Goal
from bench.peers.goals import MEMORY_FLOOR, Pair, Ratios, goals_at, paired
from bench.peers.lineup import SYSTEMS, Entry
from bench.peers.memory_floor import floor_shares
from bench.peers.turns import Failure, Outcome, label_of
from bench.systems import Measurement


@dataclass(frozen=True, slots=True)
class Comparison:
    """All outcomes so far, in the order in which they came about."""

    model: str
    setting: str
    seed: int
    systems: tuple[str, ...]
    labels: tuple[str, ...]                            # of the workloads that all systems run
    others: tuple[str, ...]                            # of those that our servers run
    outcomes: tuple[Outcome, ...]
    reasons: Mapping[str, str]                         # system -> why it has no further turn
    descriptions: Mapping[str, Mapping[str, Any]]      # of those that were started
    startups_s: Mapping[str, tuple[float, ...]]

    @property
    def measurements(self) -> list[Measurement]:
        return [outcome for outcome in self.outcomes if isinstance(outcome, Measurement)]

    def of(self, system: str, label: str) -> list[Measurement]:
        """Its runs of that workload, repeat by repeat."""
        return [m for m in self.measurements if m.system == system and label_of(m.workload) == label]

    @property
    def ratios(self) -> Ratios:
        """Those to the memory floor too, where it was measured."""
        found = paired(self.measurements)
        for system in self.entries(lambda entry: entry.is_ours):
            if weight_bytes := self.descriptions.get(system, {}).get("step_weight_bytes"):
                found[Pair(system, MEMORY_FLOOR, "single")] = floor_shares(self.measurements, system, weight_bytes)
        return found

    @property
    def bursts(self) -> list[str]:
        return [label for label in self.labels if label.startswith("burst")]

    def entries(self, wanted: Callable[[Entry], bool]) -> list[str]:
        return [system for system in self.systems if wanted(SYSTEMS[system])]

    def failure(self, system: str) -> str | None:
        """Why the system has no figures or not all of them; None if it has."""
        if system in self.reasons:
            return self.reasons[system]
        failed = [f.reason for f in self.outcomes if isinstance(f, Failure) and f.turn.system == system]
        for m in self.measurements:
            if m.system == system and m.summary.num_failed:
                first = next(record.error for record in m.records if record.error is not None)
                failed.append(f"{m.summary.num_failed} of {m.summary.num_requests} requests failed: {first}")
        return failed[0] if failed else None

    @property
    def goals(self) -> dict[Pair, Goal]:
        return goals_at(self.bursts, self.ratios)

    def peak_pss_bytes(self, system: str) -> int | None:
        """The most of all its runs."""
        peaks = [m.peak_pss_bytes for m in self.measurements if m.system == system and m.peak_pss_bytes]
        return max(peaks, default=None)

    def startup_s(self, system: str) -> float | None:
        found = self.startups_s.get(system)
        return statistics.median(found) if found else None

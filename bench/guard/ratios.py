"""Ratios of times, lower is better: as committed, as measured, and what to say of the difference."""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from bench.result_file import stamped

SCHEMA = "conveyor-guard/1"
COMMITTED = Path(__file__).resolve().parent / "committed.json"
_LEAST_TOLERANCE = 0.10
_SPREADS = 2.0                                     # a tolerance is so many spreads of the runs it was taken from


class Verdict(StrEnum):
    SAME = "same"
    WORSE = "WORSE"
    BETTER = "better"
    NEW = "new"                                    # measured, not committed
    GONE = "GONE"                                  # committed, not measured

    @property
    def is_failure(self) -> bool:
        return self in (Verdict.WORSE, Verdict.GONE)


@dataclass(frozen=True, slots=True)
class Committed:
    """One ratio as it was when it was last looked at: the median of `runs`."""

    value: float
    tolerance: float                               # share of `value` by which it may rise
    runs: tuple[float, ...]

    @classmethod
    def of_runs(cls, runs: Sequence[float]) -> "Committed":
        tolerance = max(_LEAST_TOLERANCE, _SPREADS * spread(runs))
        return cls(statistics.median(runs), tolerance, tuple(runs))


@dataclass(frozen=True, slots=True)
class Finding:
    """One ratio held against the committed one."""

    name: str
    verdict: Verdict
    measured: float | None
    rounds: tuple[float, ...]                      # `measured` is their median
    committed: Committed | None

    def __str__(self) -> str:
        measured = "" if self.measured is None else f"{self.measured:.4g}"
        rounds = f"±{spread(self.rounds) / 2:.0%}" if self.rounds else ""
        base, allowed, runs = "", "", ""
        if self.committed is not None:
            base, allowed = f"{self.committed.value:.4g}", f"+{self.committed.tolerance:.0%}"
            runs = f"±{spread(self.committed.runs) / 2:.0%}"
        return f"{self.name:<44}{measured:>10}{rounds:>7}{base:>11}{runs:>7}{allowed:>8}  {self.verdict}"


def spread(values: Sequence[float]) -> float:
    """From the least to the largest, as a share of the median."""
    return (max(values) - min(values)) / statistics.median(values)


def judge(measured: Mapping[str, Sequence[float]], committed: Mapping[str, Committed]) -> list[Finding]:
    """`measured` holds what each round found, by the name of the ratio."""
    found = []
    for name, rounds in measured.items():
        value = statistics.median(rounds)
        found.append(Finding(name, _verdict(value, committed.get(name)), value, tuple(rounds), committed.get(name)))
    gone = (name for name in committed if name not in measured)
    return found + [Finding(name, Verdict.GONE, None, (), committed[name]) for name in gone]


def _verdict(value: float, committed: Committed | None) -> Verdict:
    if committed is None:
        return Verdict.NEW
    if value > committed.value * (1 + committed.tolerance):
        return Verdict.WORSE
    return Verdict.BETTER if value < committed.value * (1 - committed.tolerance) else Verdict.SAME


def second_look(first: Sequence[Finding], second: Sequence[Finding]) -> list[Finding]:
    """What was worse is so only if it was worse twice: a neighbour on the machine passes by, a regression stays."""
    again = {finding.name: finding for finding in second}
    return [again[one.name] if one.verdict is Verdict.WORSE and one.name in again else one for one in first]


def findings_text(findings: Sequence[Finding]) -> str:
    head = f"{'ratio of times (lower is better)':<44}{'now':>10}{'':>7}{'committed':>11}{'':>7}{'may':>8}"
    return "\n".join([head, *map(str, findings)])


def read_committed(path: Path) -> tuple[dict[str, Committed], str]:
    """The ratios in `path` and the processor they are of; none where there is no such file."""
    if not path.exists():
        return {}, ""
    document = json.loads(path.read_text(encoding="utf-8"))
    if document.get("schema") != SCHEMA:
        raise ValueError(f"{path} is not a file of {SCHEMA}")
    ratios = {
        name: Committed(values["value"], values["tolerance"], tuple(values["runs"]))
        for name, values in document["ratios"].items()
    }
    return ratios, document["machine"]["cpu"]


def write_committed(path: Path, runs: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, Committed]:
    """Commits the medians of whole runs, each of which holds rounds by name; returns what was written."""
    ratios = {
        name: Committed.of_runs([statistics.median(run[name]) for run in runs]) for name in runs[0]
    }
    document: dict[str, Any] = {**stamped(SCHEMA), "ratios": {name: asdict(one) for name, one in ratios.items()}}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return ratios

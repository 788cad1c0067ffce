"""Step traces, as `engine/trace.py` writes them: read back, and laid out in slots for the picture of a batch."""

import heapq
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = "conveyor-trace/1"
WORK = ("prefill", "decode")               # kinds of rows that were wanted; all others are computed and discarded


@dataclass(frozen=True, slots=True)
class StepRow:
    """What one step computed for one request; see engine/trace.py for the kinds."""

    request_id: str
    kind: str
    start: int
    tokens: int
    blocks: int
    padding: int = 0
    sampled: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    begun_s: float
    ended_s: float
    rows: tuple[StepRow, ...]
    preempted: tuple[str, ...] = ()

    def num_rows(self, kind: str) -> int:
        """Rows of the model's products by kind; `idle` are those computed and discarded."""
        if kind == "idle":
            dropped = sum(row.tokens for row in self.rows if row.kind not in WORK)
            return dropped + sum(row.padding for row in self.rows)
        return sum(row.tokens for row in self.rows if row.kind == kind)


@dataclass(frozen=True, slots=True)
class StepTrace:
    header: Mapping[str, Any]
    steps: tuple[Step, ...]
    finished_s: Mapping[str, float] = field(default_factory=dict)      # request_id -> when it ended

    @property
    def num_requests(self) -> int:
        return len({row.request_id for step in self.steps for row in step.rows})


def read_step_trace(path: Path) -> StepTrace:
    """Raises ValueError if `path` is no step trace. A last line that was cut off is passed over."""
    lines = list(_lines(path))
    if not lines or lines[0].get("trace") != SCHEMA:
        raise ValueError(f"{path} is no step trace: its first line should say {SCHEMA}")
    steps = tuple(_step(line) for line in lines if "step" in line)
    return StepTrace(lines[0], steps, {line["finish"]: line["s"] for line in lines if "finish" in line})


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for text in file:
            if text.endswith("\n"):
                yield json.loads(text)


def _step(line: Mapping[str, Any]) -> Step:
    rows = tuple(
        StepRow(
            row["id"], row["kind"], row["start"], row["tokens"], row["blocks"],
            row.get("padding", 0), row.get("sampled", False),
        )
        for row in line["requests"]
    )  # fmt: skip
    return Step(line["begun_s"], line["ended_s"], rows, tuple(line.get("preempted", ())))


# ------------------------------------------------------------------------------------------------------------- slots


@dataclass(frozen=True, slots=True)
class Bar:
    """Consecutive steps [first, end) in which one request did one kind of thing in one slot."""

    slot: int
    first: int
    end: int
    request_id: str
    kind: str                                # those of a row, and `paused`: holds its slot, computes nothing
    ends: bool = False                       # its last token was sampled in the last of these steps
    is_preempted: bool = False               # after the last of these steps it lost its blocks


@dataclass(frozen=True, slots=True)
class _Stay:
    """A request from its admission, steps [first, end), to its end or preemption."""

    first: int
    end: int
    order: int                               # within its first step
    request_id: str
    is_preempted: bool = False


def slot_bars(trace: StepTrace) -> list[Bar]:
    """The trace as slots by steps: a request takes the lowest free slot at admission and keeps it until it leaves.

    An engine has no such slots; they are how people draw a batch.
    """
    kinds = [{row.request_id: row.kind for row in step.rows} for step in trace.steps]
    last_wanted = {row.request_id: i for i, step in enumerate(trace.steps) for row in step.rows if row.kind in WORK}
    bars: list[Bar] = []
    for slot, stay in _seated(_stays(trace)):
        first, kind = stay.first, ""
        for i in range(stay.first, stay.end + 1):
            now = kinds[i].get(stay.request_id, "paused") if i < stay.end else ""
            if now == kind and i - 1 != last_wanted[stay.request_id]:
                continue
            if kind:
                ends = i - 1 == last_wanted[stay.request_id] and stay.request_id in trace.finished_s
                bars.append(Bar(slot, first, i, stay.request_id, kind, ends, stay.is_preempted and i == stay.end))
            first, kind = i, now
    return bars


def slots_of(trace: StepTrace) -> tuple[int, list[dict[str, int]]]:
    """How many slots the trace takes, and for each step the slot of every request in it."""
    seats: list[dict[str, int]] = [{} for _ in trace.steps]
    num_slots = 0
    for slot, stay in _seated(_stays(trace)):
        num_slots = max(num_slots, slot + 1)
        for i in range(stay.first, stay.end):
            seats[i][stay.request_id] = slot
    return num_slots, seats


def _stays(trace: StepTrace) -> list[_Stay]:
    present: dict[str, tuple[int, int, int]] = {}        # request_id -> first step, order in it, last step so far
    stays: list[_Stay] = []
    for i, step in enumerate(trace.steps):
        for request_id in step.preempted:
            if request_id in present:
                first, order, last = present.pop(request_id)
                stays.append(_Stay(first, last + 1, order, request_id, is_preempted=True))
        for order, row in enumerate(step.rows):
            first, first_order, _ = present.get(row.request_id, (i, order, i))
            present[row.request_id] = first, first_order, i
    stays += [_Stay(first, last + 1, order, request_id) for request_id, (first, order, last) in present.items()]
    return sorted(stays, key=lambda stay: (stay.first, stay.order))


def _seated(stays: Sequence[_Stay]) -> Iterator[tuple[int, _Stay]]:
    free: list[int] = []
    taken: list[tuple[int, int]] = []                    # (end, slot)
    for stay in stays:
        while taken and taken[0][0] <= stay.first:
            heapq.heappush(free, heapq.heappop(taken)[1])
        slot = heapq.heappop(free) if free else len(taken)
        heapq.heappush(taken, (stay.end, slot))
        yield slot, stay

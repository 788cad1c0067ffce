"""Whose turn it is: systems take turns on the same workloads, and one that fails does not end the run."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

import psutil

from bench.memory import MemorySampler
from bench.metrics import Objective, summarize
from bench.systems import Measurement, OnDone, System, warm_up
from bench.workloads import Workload


class Loaded(System, Protocol):
    """A system that was started for the run."""

    startup_s: float                       # from the start of its process until it takes requests


Opener = Callable[[], AbstractAsyncContextManager[Loaded]]


@dataclass(frozen=True, slots=True)
class Turn:
    repeat: int
    system: str
    workload: str                          # its label, see `label_of`


@dataclass(frozen=True, slots=True)
class Failure:
    """A turn that gave no figures."""

    turn: Turn
    reason: str


Outcome = Measurement | Failure


def label_of(workload: Workload) -> str:
    """The workload's name, of a burst with its cap."""
    return f"{workload.name} {workload.parameters['cap']}" if workload.name == "burst" else workload.name


def turns_of(
    repeat: int, servers: Sequence[str], residents: Sequence[str], workloads: Sequence[str], others: Sequence[str] = ()
) -> list[Turn]:
    """The order of one repeat: servers one after another, each with all of its workloads, for two cannot be up at once;
    then workload by workload, system by system. `others` are for servers alone, in the first repeat alone.
    """
    once = others if repeat == 0 else ()
    of_servers = [Turn(repeat, server, label) for server in servers for label in (*workloads, *once)]
    return of_servers + [Turn(repeat, system, label) for label in workloads for system in residents]


def available_bytes() -> int:
    """Memory that a new process could have."""
    return int(psutil.virtual_memory().available)


class Roster:
    """The systems of a run: opened at their first turn, then kept while there is memory for others.

    One that fails has no further turn.
    """

    def __init__(
        self, openers: Mapping[str, Opener], *, failed: Mapping[str, str], limit_s: float, reserve_bytes: int = 0,
        available: Callable[[], int] = available_bytes,
    ) -> None:  # fmt: skip
        """`failed` are known to have failed, with the reason; `limit_s` is for each turn, its opening included.

        Before a system is opened, idle ones are closed until `reserve_bytes` are available.
        """
        self.reasons = dict(failed)
        self.descriptions: dict[str, dict[str, object]] = {}
        self.startups_s: dict[str, list[float]] = {}
        self._openers = openers
        self._limit_s = limit_s
        self._reserve_bytes = reserve_bytes
        self._available = available
        self._open: dict[str, tuple[Loaded, contextlib.AsyncExitStack]] = {}   # last: used last

    async def take(self, turn: Turn, workload: Workload, objective: Objective, on_done: OnDone) -> Outcome:
        """Give the system its turn. Any failure of it, and more time than `limit_s`, ends it."""
        if turn.system not in self.reasons:
            try:
                async with asyncio.timeout(self._limit_s):
                    return await self._measure(turn, workload, objective, on_done)
            except TimeoutError:
                self.reasons[turn.system] = f"killed: its turn was not over after {self._limit_s:g} s"
            except Exception as error:                     # whatever it is, the others go on and the table tells
                self.reasons[turn.system] = _one_line(error)
            await self.close(turn.system)
        return Failure(turn, self.reasons[turn.system])

    async def _measure(self, turn: Turn, workload: Workload, objective: Objective, on_done: OnDone) -> Measurement:
        if turn.system not in self._open:
            await self._start(turn.system)
            await warm_up(self._open[turn.system][0], workload)
        system, _ = self._open[turn.system] = self._open.pop(turn.system)
        is_probed = workload.name == "single"              # its process may hold what memory's speed is measured with
        async with MemorySampler(None if is_probed else system.pid) as memory:
            records, figures = await system.run(workload, on_done)
        summary = summarize(records, objective)
        return Measurement(turn.system, workload, turn.repeat, summary, figures, memory.peak_bytes, tuple(records))

    async def _start(self, name: str) -> None:
        while self._open and self._available() < self._reserve_bytes:
            await self.close(next(reversed(self._open)))   # turns go round: its next turn is the furthest away
        stack = contextlib.AsyncExitStack()
        system = await stack.enter_async_context(self._openers[name]())
        self._open[name] = system, stack
        self.descriptions[name] = system.description
        self.startups_s.setdefault(name, []).append(system.startup_s)

    async def close(self, name: str) -> None:
        """Nothing happens if it is not open; an error while it ends is no error of the run."""
        if name in self._open:
            _, stack = self._open.pop(name)
            with contextlib.suppress(Exception):
                await stack.aclose()

    @contextlib.asynccontextmanager
    async def closing(self) -> AsyncIterator["Roster"]:
        try:
            yield self
        finally:
            for name in list(self._open):
                await self.close(name)


async def play(
    roster: Roster, turns: Iterable[Turn], workloads: Mapping[str, Workload], servers: Collection[str],
    objective: Objective, on_turn: Callable[[Turn], OnDone],
) -> AsyncIterator[Outcome]:  # fmt: skip
    """Outcomes of the turns, in order. A server is closed when another system's turn comes."""
    before: str | None = None
    for turn in turns:
        if before in servers and before != turn.system:
            await roster.close(before)
        before = turn.system
        yield await roster.take(turn, workloads[turn.workload], objective, on_turn(turn))
    if before in servers:
        await roster.close(before)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return (text or type(error).__name__)[:300]

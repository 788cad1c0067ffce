"""A peer as a system under test: its own process, loaded once, driven through `bench.peers.protocol`."""

import asyncio
import contextlib
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from bench.metrics import RequestRecord
from bench.peers.packages import PeerFailed, packages_of
from bench.server_stats import ServerFigures
from bench.systems import OnDone
from bench.workloads import Workload

_ROOT = Path(__file__).resolve().parents[2]
_LONGEST_LINE_BYTES = 2**28

# Runs a module as `python -m` does, with one more folder of packages, which our own processes never see.
_START = "import runpy, sys; sys.path.append(sys.argv.pop(1)); runpy.run_module(sys.argv.pop(1), run_name='__main__')"


def peer_command(name: str, arguments: Sequence[str]) -> list[str]:
    """The command line of the peer's process; its packages are installed if they are not yet."""
    return [sys.executable, "-c", _START, str(packages_of(name)), f"bench.peers.{name}", *arguments]


class PeerSystem:
    """A running peer."""

    def __init__(self, name: str, process: Process, description: dict[str, Any]) -> None:
        self.name = name
        self.description = description
        self._process = process

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, name: str, command: Sequence[str]) -> "AsyncIterator[PeerSystem]":
        """Start the peer's process and wait until it is ready."""
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, cwd=_ROOT, limit=_LONGEST_LINE_BYTES
        )
        try:
            yield cls(name, process, (await _receive(name, process))["ready"])
        finally:
            await _end(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def run(self, workload: Workload, on_done: OnDone) -> tuple[list[RequestRecord], ServerFigures]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(workload.to_json()).encode() + b"\n")
        await self._process.stdin.drain()
        records = []
        while "record" in (message := await _receive(self.name, self._process)):
            records.append(RequestRecord.from_json(message["record"]))
            on_done(records[-1])
        return sorted(records, key=lambda record: record.index), ServerFigures()


async def _receive(name: str, process: Process) -> dict[str, Any]:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise PeerFailed(f"peer {name} ended with status {await process.wait()}; its standard error says why")
    message: dict[str, Any] = json.loads(line)
    return message


async def _end(process: Process) -> None:
    """Close the peer's input, which ends it when idle; kill it if it is not."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), timeout=5)
    except TimeoutError:
        process.kill()
        await process.wait()

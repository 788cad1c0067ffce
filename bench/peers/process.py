"""A peer as a system under test: its own process, loaded once, driven through `bench.peers.protocol`."""

import asyncio
import contextlib
import json
import os
import subprocess
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from bench.metrics import RequestRecord
from bench.peers.packages import Environment, PeerFailed, environment_of, last_error
from bench.server_stats import ServerFigures
from bench.systems import OnDone
from bench.workloads import Workload

ROOT = Path(__file__).resolve().parents[2]
_LONGEST_LINE_BYTES = 2**28
_LOG_TAIL_BYTES = 2**14
_END_S = 5.0                              # for an idle peer to end by itself; then it is killed

# Runs a module as `python -m` does, with more folders of packages after all others: our own processes never see a
# peer's, and a peer with an environment of its own never sees our packages in place of its own.
_START = (
    "import os, runpy, sys; sys.path.extend(sys.argv.pop(1).split(os.pathsep)); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__')"
)


def peer_command(peer: str, module: str, arguments: Sequence[str]) -> list[str]:
    """The command line of `bench.peers.<module>` with the packages of `peer`, which are installed if they are not yet.

    Raises PeerFailed.
    """
    return module_command(environment_of(peer), f"bench.peers.{module}", arguments)


def module_command(environment: Environment, module: str, arguments: Sequence[str]) -> list[str]:
    folders = [ROOT] if environment.folder is None else [ROOT, environment.folder]
    paths = os.pathsep.join(map(str, folders))
    return [str(environment.python), "-P", "-c", _START, paths, module, *arguments]


def run_once(command: Sequence[str], log: Path) -> None:
    """Run a peer's command that ends by itself. Raises PeerFailed with its last error."""
    with log.open("wb") as output:
        status = subprocess.run(command, stdout=output, stderr=output, cwd=ROOT).returncode
    if status:
        raise PeerFailed(log_error(log))


class PeerSystem:
    """A running peer."""

    def __init__(self, name: str, process: Process, log: Path) -> None:
        self.name = name
        self.description: dict[str, Any] = {}
        self.startup_s = 0.0
        self._process = process
        self._log = log

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, name: str, command: Sequence[str], log: Path) -> "AsyncIterator[PeerSystem]":
        """Start the peer's process and wait until it is ready. What it prints goes to `log`. Raises PeerFailed."""
        begun_s = time.perf_counter()
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=PIPE, stdout=PIPE, stderr=output, cwd=ROOT, limit=_LONGEST_LINE_BYTES
            )
        try:
            system = cls(name, process, log)
            system.description = (await system._receive())["ready"]
            system.startup_s = time.perf_counter() - begun_s
            yield system
        finally:
            await _end(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def run(self, workload: Workload, on_done: OnDone) -> tuple[list[RequestRecord], ServerFigures]:
        """Raises PeerFailed if the process ends before the workload does."""
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError):         # its end of output tells why
            self._process.stdin.write(json.dumps(workload.to_json()).encode() + b"\n")
            await self._process.stdin.drain()
        records = []
        while "record" in (message := await self._receive()):
            records.append(RequestRecord.from_json(message["record"]))
            on_done(records[-1])
        return sorted(records, key=lambda record: record.index), ServerFigures(**message["done"])

    async def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            status = await self._process.wait()
            raise PeerFailed(f"{log_error(self._log)} (its process ended with status {status})")
        message: dict[str, Any] = json.loads(line)
        return message


def log_error(log: Path) -> str:
    """The line of a log that most likely says why its process ended."""
    return last_error(log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace"))


async def _end(process: Process) -> None:
    """Close the peer's input, which ends it when idle; kill it and its children if it is not."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), timeout=_END_S)
    except TimeoutError:
        kill_tree(process.pid)
        await process.wait()


def kill_tree(pid: int) -> None:
    """Kill a process and all its descendants."""
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        for one in [*parent.children(recursive=True), parent]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()

"""Our own server as a system under test: started as `make serve` starts it, on a port of its own, and ended again."""

import asyncio
import contextlib
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from bench.http_client import HttpClient
from bench.peers.packages import PeerFailed
from bench.peers.process import ROOT, kill_tree, log_error
from bench.systems import HttpSystem
from serve_app.launcher.ports import free_port

_POLL_S = 0.2
_STOP_S = 60.0                            # for the launcher to end Ray; then it is killed


def deployment(engine: Mapping[str, Any], port: int) -> dict[str, Any]:
    """deploy/app.yaml with another port and, in its application's arguments, those of `engine`."""
    document = yaml.safe_load((ROOT / "deploy/app.yaml").read_text(encoding="utf-8"))
    document["http_options"] = {"host": "127.0.0.1", "port": port}
    [application] = document["applications"]
    application["args"] = application["args"] | dict(engine)
    return document


class OurServer(HttpSystem):
    """A running server of ours."""

    def __init__(self, client: HttpClient, server_pid: int, version: Any, engine: Mapping[str, Any]) -> None:
        super().__init__(client, server_pid, version)
        self.startup_s = 0.0
        self._engine = engine

    @classmethod
    @contextlib.asynccontextmanager
    async def start(
        cls, name: str, engine: Mapping[str, Any], log: Path, *, timeout_s: float
    ) -> "AsyncIterator[OurServer]":
        """Start the launcher and wait until /ready says so; `timeout_s` is of a request. Raises PeerFailed."""
        port = free_port()
        file = log.with_suffix(".yaml")
        file.write_text(yaml.safe_dump(deployment(engine, port)), encoding="utf-8")
        begun_s = time.perf_counter()
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "serve_app", str(file), stdout=output, stderr=output, cwd=ROOT
            )
        try:
            url = f"http://127.0.0.1:{port}"
            await _wait_until_ready(url, process, log)
            startup_s = time.perf_counter() - begun_s
            async with HttpClient(url, timeout_s=timeout_s) as client:
                system = cls(client, process.pid, await client.get_json("/version"), engine)
                system.name, system.startup_s = name, startup_s
                yield system
        finally:
            await _stop(process)

    @property
    def description(self) -> dict[str, Any]:
        return {
            "dtype": self._engine["dtype"],
            "num_threads": self._engine["num_threads"],
            "kv_tokens": self._engine["kv_cache"]["capacity_tokens"],
            "versions": {"conveyor": self._version["version"]},
        }


async def _wait_until_ready(url: str, process: Process, log: Path) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        while True:
            if process.returncode is not None:
                raise PeerFailed(f"{log_error(log)} (the server ended with status {process.returncode})")
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with session.get(f"{url}/ready") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(_POLL_S)


async def _stop(process: Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), _STOP_S)
    except TimeoutError:
        kill_tree(process.pid)
        await process.wait()

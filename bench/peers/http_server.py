"""Our own server as a system under test: started as `make serve` starts it, on a port of its own, and ended again."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.http_client import HttpClient
from bench.metrics import RequestRecord
from bench.peers.memory_floor import memory_bytes_per_s_before, step_weight_bytes
from bench.peers.packages import PeerFailed
from bench.peers.process import log_error
from bench.replay import RequestFailed
from bench.server_stats import ServerFigures
from bench.servers import our_server
from bench.systems import HttpSystem, OnDone
from bench.workloads import Workload
from engine.api import EngineConfig


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
        with our_server(log, engine) as server:
            try:
                startup_s = await asyncio.to_thread(server.wait_for_http, "/ready")
            except RequestFailed as failure:
                raise PeerFailed(f"{log_error(log)} ({failure.args[0].partition(':')[0]})") from failure
            async with HttpClient(server.url, timeout_s=timeout_s) as client:
                system = cls(client, server.process.pid, await client.get_json("/version"), engine)
                system.name, system.startup_s = name, startup_s
                yield system

    async def run(self, workload: Workload, on_done: OnDone) -> tuple[list[RequestRecord], ServerFigures]:
        memory_bytes_per_s = memory_bytes_per_s_before(workload, self._engine["num_threads"])
        records, figures = await super().run(workload, on_done)
        return records, replace(figures, memory_bytes_per_s=memory_bytes_per_s)

    @property
    def description(self) -> dict[str, Any]:
        return {
            "dtype": self._engine["dtype"],
            "num_threads": self._engine["num_threads"],
            "kv_tokens": self._engine["kv_cache"]["capacity_tokens"],
            "step_weight_bytes": step_weight_bytes(EngineConfig.model_validate(self._engine)),
            "versions": {"conveyor": self._version["version"]},
        }

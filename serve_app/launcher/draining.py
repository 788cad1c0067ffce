"""Drainer: refuses new requests while running ones finish, and ends with an error those that do not in time."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from ray import serve

POLL_S = 0.1
CALL_TIMEOUT_S = 5.0
LAST_WORDS_S = 2.0            # for the error events of streams that are cut
LAST_BYTES_S = 0.5            # from the ingress, which is done with a request then, through the proxy to the client


class Drainer:
    """The way to all replicas of an application; made when it is ready, for a first call can take seconds.

    Its methods are coroutines of one event loop: with Serve's throughput settings handles work only there.
    """

    def __init__(self, application: str) -> None:
        self._ingress = serve.get_app_handle(application)
        self._llm_server = serve.get_deployment_handle("LLMServer", app_name=application)

    async def warm_up(self) -> None:
        await self._num_running()
        await _on_every_replica(self._llm_server, "stats")

    async def drain(self, *, timeout_s: float, is_cut_short: Callable[[], bool]) -> None:
        """Returns once no request runs, or `timeout_s` after the call and the last words of those that do."""
        await _on_every_replica(self._ingress, "refuse_new_requests")
        deadline = time.monotonic() + timeout_s
        while await self._num_running() and time.monotonic() < deadline and not is_cut_short():
            await asyncio.sleep(POLL_S)
        if await self._num_running():
            await _on_every_replica(self._llm_server, "end", "the server is shutting down")
            deadline = time.monotonic() + LAST_WORDS_S
            while await self._num_running() and time.monotonic() < deadline:
                await asyncio.sleep(POLL_S)
        await asyncio.sleep(LAST_BYTES_S)

    async def _num_running(self) -> int:
        return sum(await _on_every_replica(self._ingress, "num_running_requests"))


async def _on_every_replica(handle: Any, method: str, *arguments: str) -> list[Any]:
    results: list[Any] = await handle.broadcast(method, *arguments).results_async(timeout_s=CALL_TIMEOUT_S)
    return results

"""Replicas: how the ingress reaches the engines."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Protocol

from ray.serve.handle import DeploymentHandle

from engine.api import EngineRequest, EngineStats, RequestError, RequestOutput

Outputs = tuple[RequestOutput, ...]                  # of several requests, at most one of each



@dataclass(frozen=True, slots=True)
class ReplicaStats:
    """What one replica says of itself."""

    replica: str
    is_alive: bool                                    # its engine has not died
    stats: EngineStats


class Replicas(Protocol):
    """All replicas of one model."""

    def generate(self, requests: tuple[EngineRequest, ...]) -> AsyncGenerator[Outputs, None]:
        """Outputs of `requests`, all on one replica; an item holds what each has gained since the last item.

        Raises what the engine raises; closing it early aborts the requests.
        """

    async def stats(self, timeout_s: float) -> list[ReplicaStats]:
        """Of every replica that answers in time."""


class HandleReplicas:
    """Replicas behind a Serve handle, by gRPC: a hop costs a third less than through Ray's object store."""

    def __init__(self, llm_server: DeploymentHandle[Any]) -> None:
        self._handle = llm_server.options(
            stream=True, _by_reference=False, request_serialization="pickle", response_serialization="pickle"
        )
        self._control = llm_server.options(_by_reference=False)

    async def generate(self, requests: tuple[EngineRequest, ...]) -> AsyncGenerator[Outputs, None]:
        response: Any = self._handle.generate.remote(requests)
        is_complete = False
        try:
            async for item in response:
                if isinstance(item, RequestError):
                    raise item
                yield item
            is_complete = True
        finally:
            if not is_complete:
                response.cancel()

    async def stats(self, timeout_s: float) -> list[ReplicaStats]:
        # `results_async` gives all answers or none: one frozen replica would hide the others.
        results: list[Any] = await self._control.broadcast("stats")._fetch_replica_results_async()
        asked = [asyncio.create_task(result.get_async()) for result in results]
        done, late = await asyncio.wait(asked, timeout=timeout_s)
        for task in late:
            task.cancel()
        return [task.result() for task in done if task.exception() is None]

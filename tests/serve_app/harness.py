"""The HTTP side over one in-process LLMServer: no Ray, no sockets."""

import asyncio
import json
import pickle
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from serve_app.config import AppConfig
from serve_app.ingress import build_asgi
from serve_app.llm_server import LLMServer
from serve_app.parcel import Parcel
from serve_app.replicas import HandleReplicas
from tests.serve_app.fake_engine import FakeEngine


async def start_server(engine: FakeEngine) -> LLMServer:
    server = LLMServer.__new__(LLMServer)                  # its constructor is for Serve to await
    await server.__init__(AppConfig(model="fake"), lambda config: engine)  # type: ignore[func-returns-value, misc]
    return server


class LocalHandle:
    """What a Serve handle is to HandleReplicas, with replicas in this process; the next call goes to `chosen`."""

    def __init__(self, *servers: LLMServer) -> None:
        self.servers = servers
        self.chosen = 0
        self.generate = self                               # handle.generate.remote(...)

    def options(self, **options: Any) -> "LocalHandle":
        return self

    async def remote(self, *args: Any) -> AsyncGenerator[Parcel, None]:
        async with aclosing(self.servers[self.chosen].generate(*args)) as parcels:
            async for parcel in parcels:
                yield pickle.loads(pickle.dumps(parcel))

    def broadcast(self, method: str, *args: Any) -> "Broadcast":
        return Broadcast([getattr(server, method)(*args) for server in self.servers])


class Broadcast:
    def __init__(self, calls: list[Coroutine[Any, Any, Any]]) -> None:
        self._calls = calls

    async def _fetch_replica_results_async(self) -> "list[Result]":
        return [Result(asyncio.create_task(call)) for call in self._calls]


@dataclass(frozen=True)
class Result:
    task: "asyncio.Task[Any]"

    async def get_async(self) -> Any:
        return await self.task


class LocalReplicas(HandleReplicas):
    """Replicas in this process."""

    def __init__(self, *servers: LLMServer) -> None:
        super().__init__(LocalHandle(*servers))  # type: ignore[arg-type]


@asynccontextmanager
async def serving(engine: FakeEngine, model: Path, **config: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an application whose tokenizer is in `model` and whose engine is `engine`."""
    server = await start_server(engine)
    app = build_asgi(AppConfig(model=str(model), served_model_name="tiny", **config), LocalReplicas(server))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    client = httpx.AsyncClient(transport=transport, base_url="http://test")
    async with app.router.lifespan_context(app), client:
        client.app = app  # type: ignore[attr-defined]
        yield client


def events(body: str) -> list[Any]:
    """The chunks of an event stream, "[DONE]" as a string; comments left out."""
    assert body.endswith("\n\n")
    pieces = [piece for piece in body.removesuffix("\n\n").split("\n\n") if not piece.startswith(":")]
    payloads = [piece.removeprefix("data: ") for piece in pieces]
    return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]

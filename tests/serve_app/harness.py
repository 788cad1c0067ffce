"""The HTTP side over one in-process LLMServer: no Ray, no sockets."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from engine.api import GenerationRequest, RequestError
from serve_app.config import AppConfig
from serve_app.ingress import build_asgi
from serve_app.llm_server import LLMServer
from serve_app.replicas import Outputs, ReplicaStats
from tests.serve_app.fake_engine import FakeEngine


async def start_server(engine: FakeEngine) -> LLMServer:
    server = LLMServer.__new__(LLMServer)                  # its constructor is for Serve to await
    await server.__init__(AppConfig(model="fake"), lambda config: engine)  # type: ignore[func-returns-value, misc]
    return server


class LocalReplicas:
    """One replica in this process."""

    def __init__(self, server: LLMServer) -> None:
        self._server = server

    async def generate(self, requests: tuple[GenerationRequest, ...]) -> AsyncGenerator[Outputs, None]:
        async with aclosing(self._server.generate(requests)) as stream:
            async for item in stream:
                if isinstance(item, RequestError):
                    raise item
                yield item

    async def stats(self, timeout_s: float) -> list[ReplicaStats]:
        return [await self._server.stats()]


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

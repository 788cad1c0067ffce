"""What happens between a client and its request when one of them ends early."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Message

from engine.api import EngineDeadError, GenerationRequest
from tests.serve_app.fake_engine import FakeEngine, script
from tests.serve_app.harness import events, serving


class Connection:
    """A raw ASGI connection that can be closed at any moment."""

    def __init__(self, client: httpx.AsyncClient, body: dict[str, Any]) -> None:
        self.sent: asyncio.Queue[Message] = asyncio.Queue()
        self.closed = asyncio.Event()
        self._body: bytes | None = json.dumps(body).encode()
        scope = {
            "type": "http", "method": "POST", "path": "/v1/completions", "raw_path": b"/v1/completions", "headers": [],
            "query_string": b"", "root_path": "", "http_version": "1.1", "scheme": "http", "server": ("test", 80),
        }  # fmt: skip
        self.served = asyncio.create_task(client.app(scope, self._receive, self.sent.put))  # type: ignore[attr-defined]

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.closed.wait()
        return {"type": "http.disconnect"}


async def test_a_stream_whose_client_leaves_is_aborted(tiny_model: Path) -> None:
    engine = FakeEngine(script("a", "b", "c"))
    engine.hold = asyncio.Event()                          # never set: the answer cannot end by itself
    async with serving(engine, tiny_model) as client:
        connection = Connection(client, {"prompt": "x", "stream": True, "n": 2})
        assert (await connection.sent.get())["status"] == 200
        await connection.sent.get()
        connection.closed.set()
        await connection.served
        await engine.was_aborted(2)


async def test_a_plain_request_whose_client_leaves_is_aborted(tiny_model: Path) -> None:
    engine = FakeEngine(script("a", "b"))
    engine.hold = asyncio.Event()
    async with serving(engine, tiny_model) as client:
        connection = Connection(client, {"prompt": "x"})
        while not engine.requests:
            await asyncio.sleep(0)
        connection.closed.set()
        await connection.served
        await engine.was_aborted(1)


async def test_a_cancelled_request_is_aborted(tiny_model: Path) -> None:
    """As Serve does when its proxy sees the client leave."""
    engine = FakeEngine(script("a", "b"))
    engine.hold = asyncio.Event()
    async with serving(engine, tiny_model) as client:
        connection = Connection(client, {"prompt": "x", "stream": True})
        await connection.sent.get()
        connection.served.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connection.served
        await engine.was_aborted(1)


async def test_an_engine_that_dies_ends_streams_with_an_error_event_and_no_done(tiny_model: Path) -> None:
    class Dying(FakeEngine):
        async def _answer(self, request):  # type: ignore[no-untyped-def]
            async for output in super()._answer(request):
                yield output
                await asyncio.sleep(0.05)                  # so that the first token is sent on its own
                self.death = EngineDeadError("it broke")

    async with serving(Dying(script("a", "b")), tiny_model) as client:
        response = await client.post("/v1/completions", json={"prompt": "x", "stream": True})
    *chunks, last = events(response.text)
    assert response.status_code == 200
    assert [chunk["choices"][0]["text"] for chunk in chunks] == ["a"]
    assert last["error"]["code"] == "service_unavailable"
    assert "it broke" in last["error"]["message"]


async def test_an_engine_that_is_dead_is_a_503_before_the_first_token(tiny_model: Path) -> None:
    class JustDied(FakeEngine):                            # and the ingress has not heard of it
        def _accept(self, request: GenerationRequest) -> None:
            raise EngineDeadError("it broke")

    async with serving(JustDied(), tiny_model) as client:
        for stream in (False, True):
            response = await client.post("/v1/completions", json={"prompt": "x", "stream": stream})
            assert response.status_code == 503
            assert response.headers["retry-after"] == "1"


async def test_a_request_that_fails_alone_is_an_error_not_a_short_answer(tiny_model: Path) -> None:
    engine = FakeEngine(script("a", "b", "c"))
    engine.failure = "NaN in its logits"
    async with serving(engine, tiny_model) as client:
        whole = await client.post("/v1/completions", json={"prompt": "x"})
    assert whole.status_code == 500
    assert whole.json()["error"]["message"] == "NaN in its logits"


async def test_a_request_past_its_deadline_ends_with_504(tiny_model: Path) -> None:
    engine = FakeEngine(script("a", "b"))
    engine.hold = asyncio.Event()
    async with serving(engine, tiny_model, request_timeout_s=0.05) as client:
        response = await client.post("/v1/completions", json={"prompt": "x"})
        assert response.status_code == 504
        await engine.was_aborted(1)

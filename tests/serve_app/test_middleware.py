from pathlib import Path

from starlette.types import Message, Receive, Scope, Send

from serve_app.middleware import StripHeaders
from tests.serve_app.fake_engine import FakeEngine
from tests.serve_app.harness import serving


async def test_a_body_over_the_cap_is_413_whether_declared_or_not(tiny_model: Path) -> None:
    body = b'{"prompt":"' + b"x" * 200 + b'"}'

    async def undeclared():  # type: ignore[no-untyped-def]
        yield body[:100]
        yield body[100:]

    async with serving(FakeEngine(), tiny_model, max_body_bytes=150) as client:
        declared = await client.post("/v1/completions", content=body)
        chunked = await client.post("/v1/completions", content=undeclared())
        small = await client.post("/v1/completions", content=b'{"prompt":"x"}')
    for response in (declared, chunked):
        assert response.status_code == 413
        assert response.json()["error"]["code"] == "body_too_large"
    assert small.status_code == 200


async def test_headers_that_steer_serve_do_not_pass() -> None:
    seen: list[Scope] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        raise AssertionError

    headers = [(b"x-request-timeout-seconds", b"1"), (b"X-Request-Disconnect-Disabled", b"?1"), (b"accept", b"*/*")]
    await StripHeaders(app)({"type": "http", "headers": headers}, receive, send)
    assert seen[0]["headers"] == [(b"accept", b"*/*")]

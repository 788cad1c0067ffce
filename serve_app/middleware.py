"""Pure ASGI middleware: body cap and access log around every endpoint, header stripping in Serve's proxy."""

import json
import logging
import time
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serve_app.errors import ApiError

log = logging.getLogger("ray.serve")                  # the logger that Serve writes to a replica's log

# Serve obeys these if a client sends them; they are its own business, never a client's.
STRIPPED_HEADERS = frozenset({b"x-request-timeout-seconds", b"x-request-disconnect-disabled"})


@dataclass(frozen=True, slots=True)
class StripHeaders:
    """Removes the headers by which a client could steer Serve. Of use in the proxy only: it reads them first."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            kept = [(name, value) for name, value in scope["headers"] if name.lower() not in STRIPPED_HEADERS]
            scope = {**scope, "headers": kept}
        await self.app(scope, receive, send)


@dataclass(frozen=True, slots=True)
class JsonOnly:
    """Answers 415 to a body that says it is no JSON. One that does not say is taken at its word."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            declared = next((value for name, value in scope["headers"] if name.lower() == b"content-type"), b"")
            media_type = declared.split(b";")[0].strip().lower().decode("latin-1")
            if media_type and media_type != "application/json":
                message = f"the content type is {media_type}; send application/json"
                return await _refuse(ApiError(415, message, code="unsupported_media_type"), send)
        await self.app(scope, receive, send)


class BodyTooLarge(Exception):
    """Raised out of `receive` when the body passes the cap."""


@dataclass(frozen=True, slots=True)
class LimitBody:
    """Answers 413 once a body passes `max_body_bytes`, declared or not; no more of it is read."""

    app: ASGIApp
    max_body_bytes: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        declared = next((value for name, value in scope["headers"] if name.lower() == b"content-length"), b"0")
        if declared.isdigit() and int(declared) > self.max_body_bytes:
            return await _refuse(self._too_large, send)
        num_bytes = 0

        async def receive_counted() -> Message:
            nonlocal num_bytes
            message = await receive()
            num_bytes += len(message.get("body", b""))
            if num_bytes > self.max_body_bytes:
                raise BodyTooLarge
            return message

        try:
            await self.app(scope, receive_counted, send)
        except BodyTooLarge:
            await _refuse(self._too_large, send)

    @property
    def _too_large(self) -> ApiError:
        return ApiError(413, f"the body is larger than {self.max_body_bytes} bytes", code="body_too_large")


@dataclass(frozen=True, slots=True)
class AccessLog:
    """One line per request, after its last byte."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        begun_s = time.monotonic()
        status = 0                                    # stays 0 if the client left before an answer

        async def send_noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_noted)
        except Exception:
            status = 500                              # which is sent further out
            raise
        finally:
            log.info("%s %s %d %.3f s", scope["method"], scope["path"], status, time.monotonic() - begun_s)


async def _refuse(error: ApiError, send: Send) -> None:
    body = json.dumps(error.body()).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

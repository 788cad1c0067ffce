"""Server-sent events: the ASGI response that streams JSON chunks and ends with [DONE] or with an error event."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from serve_app.disconnect import disconnected
from serve_app.errors import answer_for, to_api_error

log = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),                   # nginx would gather the stream
]

Chunk = dict[str, Any]


# made once: json.dumps makes one a call
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, check_circular=False).encode


def event(chunk: Chunk) -> bytes:
    return b"data: " + _encode(chunk).encode() + b"\n\n"


class EventStream:
    """A 200 that sends `chunks` as they come, all of one item in one message: what a message costs is not its length.

    It closes them whatever happens, a client that leaves included.

    While nothing comes, a comment every `keep_alive_s` keeps the connection from looking dead to those between.
    An error while streaming becomes one event with the OpenAI error object, after which the stream ends without
    [DONE]: a cut answer never looks complete.
    """

    def __init__(self, chunks: AsyncGenerator[Sequence[Chunk], None], keep_alive_s: float) -> None:
        self._chunks = chunks
        self._keep_alive_s = keep_alive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent_s = time.monotonic()                    # when something was sent last

        async def send_noted(message: Message) -> None:
            nonlocal sent_s
            await send(message)
            sent_s = time.monotonic()

        async def keep_alive() -> None:
            """Beside the chunks rather than between them: no chunk waits for a timer to be set."""
            while True:
                silent_s = time.monotonic() - sent_s
                if silent_s < self._keep_alive_s:
                    await asyncio.sleep(self._keep_alive_s - silent_s)
                else:
                    await send_noted({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})

        await send_noted({"type": "http.response.start", "status": 200, "headers": HEADERS})
        sending = asyncio.create_task(self._send(send_noted))
        keeping = asyncio.create_task(keep_alive())
        leaving = asyncio.create_task(disconnected(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            for task in (sending, keeping, leaving):
                task.cancel()
            await asyncio.gather(sending, keeping, leaving, return_exceptions=True)

    async def _send(self, send: Send) -> None:
        async with aclosing(self._chunks) as items:
            last = DONE
            try:
                async for chunks in items:
                    body = b"".join(map(event, chunks))
                    await send({"type": "http.response.body", "body": body, "more_body": True})
            except Exception as error:
                if to_api_error(error) is None:
                    log.exception("a stream failed")
                last = event(answer_for(error).body())
            await send({"type": "http.response.body", "body": last, "more_body": False})


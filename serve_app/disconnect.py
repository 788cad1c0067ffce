"""What ends work nobody waits for: neither Starlette nor a plain ASGI handler is told that its client left."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.types import Receive

Result = TypeVar("Result")


class ClientDisconnected(Exception):
    """The client closed its connection before the answer."""


async def disconnected(receive: Receive) -> None:
    """Return once the client has left. Only for requests whose body has been read whole."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def or_disconnect(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which is cancelled, and ClientDisconnected raised, if the client leaves first."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(disconnected(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnected
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)

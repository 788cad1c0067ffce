"""Gathering: the outputs of several requests as one stream, whose items hold whatever came since the last one."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

from engine.api import RequestOutput
from serve_app.replicas import Outputs

MAX_PAUSE_S = 0.02
PAUSE_PER_STREAM_S = 0.0003          # about what one item costs this process and the next one


def pause_s(num_streams: int) -> float:
    """The shortest time between two items of one stream: next to none for a few, bounded for many.

    An item per token costs more than the token does; below this pace items carry several tokens.
    """
    return min(MAX_PAUSE_S, PAUSE_PER_STREAM_S * num_streams)


async def gather(
    streams: Sequence[AsyncIterator[RequestOutput]], pause: Callable[[], float]
) -> AsyncGenerator[Outputs, None]:
    """The first outputs at once, then at most one item every `pause()` seconds, until all streams have ended.

    What is left when one ends does not wait.
    Raises the first error of any stream. Ends all streams when it is closed.
    """
    pending: dict[str, RequestOutput] = {}            # request_id -> outputs not yielded yet, merged
    arrived, ended = asyncio.Event(), asyncio.Event()

    async def pump(stream: AsyncIterator[RequestOutput]) -> None:
        async for output in stream:
            earlier = pending.get(output.request_id)
            pending[output.request_id] = output if earlier is None else earlier.then(output)
            arrived.set()

    pumps = [asyncio.create_task(pump(stream)) for stream in streams]
    for task in pumps:
        task.add_done_callback(lambda _: arrived.set())
        task.add_done_callback(lambda _: ended.set())
    try:
        while pending or not all(task.done() for task in pumps):
            await arrived.wait()
            arrived.clear()
            _raise_first_error(pumps)
            if pending:
                items = tuple(pending.values())
                pending.clear()
                yield items
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause()):
                        await ended.wait()
                ended.clear()
        _raise_first_error(pumps)
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


def _raise_first_error(tasks: Sequence["asyncio.Task[None]"]) -> None:
    for task in tasks:
        if task.done():
            task.result()

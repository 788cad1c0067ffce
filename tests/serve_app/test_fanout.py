import asyncio
from collections.abc import AsyncIterator

import pytest

from engine.api import FinishReason, InvalidRequest, RequestOutput
from serve_app.fanout import MAX_PAUSE_S, gather, pause_s
from serve_app.replicas import Outputs


class Scripted:
    """A stream that yields what is put into it; None ends it, an error is raised."""

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.queue: asyncio.Queue[str | Exception | None] = asyncio.Queue()
        self.is_closed = False

    async def outputs(self) -> AsyncIterator[RequestOutput]:
        try:
            while (item := await self.queue.get()) is not None:
                if isinstance(item, Exception):
                    raise item
                yield RequestOutput(self.request_id, text=item)
            yield RequestOutput(self.request_id, finish_reason=FinishReason.STOP)
        finally:
            self.is_closed = True


def texts(items: Outputs) -> dict[str, str]:
    return {item.request_id: item.text for item in items}


async def test_what_comes_during_the_pause_is_one_item() -> None:
    a, b = Scripted("a"), Scripted("b")
    stream = gather([a.outputs(), b.outputs()], lambda: 0.01)
    a.queue.put_nowait("1")
    assert texts(await anext(stream)) == {"a": "1"}       # the first at once
    for queue, text in ((a.queue, "2"), (a.queue, "3"), (b.queue, "x")):
        queue.put_nowait(text)
    assert texts(await anext(stream)) == {"a": "23", "b": "x"}
    a.queue.put_nowait(None)
    b.queue.put_nowait(None)
    rest = [item async for item in stream]
    assert sorted(output.request_id for item in rest for output in item if output.is_finished) == ["a", "b"]


async def test_an_end_does_not_wait_for_the_pause() -> None:
    a, b = Scripted("a"), Scripted("b")
    stream = gather([a.outputs(), b.outputs()], lambda: 3600)
    a.queue.put_nowait("1")
    await anext(stream)
    b.queue.put_nowait("x")
    a.queue.put_nowait(None)
    last = await asyncio.wait_for(anext(stream), timeout=10)
    assert {output.request_id: output.is_finished for output in last} == {"a": True, "b": False}
    await stream.aclose()


async def test_a_refusal_ends_all_streams() -> None:
    a, b = Scripted("a"), Scripted("b")
    stream = gather([a.outputs(), b.outputs()], lambda: 0)
    b.queue.put_nowait(InvalidRequest("no"))
    with pytest.raises(InvalidRequest):
        await anext(stream)
    assert a.is_closed


async def test_an_error_after_the_last_item_is_raised_too() -> None:
    a = Scripted("a")
    stream = gather([a.outputs()], lambda: 0)
    a.queue.put_nowait("1")
    await anext(stream)
    a.queue.put_nowait(RuntimeError("late"))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="late"):
        await anext(stream)


async def test_closing_ends_the_streams() -> None:
    a = Scripted("a")
    stream = gather([a.outputs()], lambda: 0)
    a.queue.put_nowait("1")
    await anext(stream)
    await stream.aclose()
    assert a.is_closed


def test_few_streams_wait_for_nothing_and_many_are_bounded() -> None:
    assert pause_s(1) < 0.001
    assert pause_s(1000) == MAX_PAUSE_S

import asyncio

import pytest

from engine.api import FinishReason, RequestOutput
from serve_app.inbox import Inbox, InOrder


async def test_what_comes_before_anybody_asks_is_merged_request_by_request() -> None:
    inbox = Inbox(("a", "b"))
    for request_id, text in (("a", "1"), ("b", "x"), ("a", "2")):
        inbox.put(RequestOutput(request_id, text=text))
    items = inbox.items()
    assert {output.request_id: output.text for output in await anext(items)} == {"a": "12", "b": "x"}
    inbox.put(RequestOutput("a", text="3", finish_reason=FinishReason.STOP))
    inbox.end()
    assert [output.text for outputs in [item async for item in items] for output in outputs] == ["3"]


async def test_an_error_comes_after_what_came_before_it() -> None:
    inbox = Inbox(("a",))
    inbox.put(RequestOutput("a", text="1"))
    inbox.end(RuntimeError("late"))
    inbox.end()                                            # the first end counts
    items = inbox.items()
    assert (await anext(items))[0].text == "1"
    with pytest.raises(RuntimeError, match="late"):
        await anext(items)


async def test_an_end_is_told_to_whoever_waits() -> None:
    inbox = Inbox(("a",))
    waiting = asyncio.create_task(anext(inbox.items(), None))
    await asyncio.sleep(0)
    inbox.end()
    assert await asyncio.wait_for(waiting, 10) is None


def test_items_are_handed_on_in_the_order_of_their_numbers() -> None:
    in_order: InOrder[str] = InOrder()
    assert list(in_order.put(1, "b")) == []
    assert list(in_order.put(0, "a")) == ["a", "b"]
    assert list(in_order.put(2, "c")) == ["c"]

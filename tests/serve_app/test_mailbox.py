import asyncio
from collections.abc import AsyncGenerator

import pytest

from engine.api import EngineDeadError, FinishReason, InvalidRequest, RequestOutput
from serve_app.mailbox import MAX_PAUSE_S, Call, Mailbox, pause_s
from serve_app.parcel import Parcel

FOREVER_S = 3600.0


class Posted(Mailbox):
    """A mailbox that says how many outputs each request has had."""

    def __init__(self, pause_s: float = 0.0) -> None:
        super().__init__("replica", lambda num_calls: pause_s)
        self.count: dict[str, int] = {}

    def say(self, request_id: str, text: str, *, is_last: bool = False) -> None:
        count = self.count[request_id] = self.count.get(request_id, 0) + 1
        reason = FinishReason.STOP if is_last else None
        self.put(RequestOutput(request_id, (0,), text, num_output_tokens=count, finish_reason=reason))

    def begin(self, *request_ids: str) -> "tuple[Call, AsyncGenerator[Parcel, None]]":
        call = self.open(request_ids)
        self.accept(call)
        return call, self.parcels(call)


def texts(parcel: Parcel) -> dict[str, str]:
    return {output.request_id: output.text for output in parcel.outputs}


async def soon(parcels: AsyncGenerator[Parcel, None]) -> Parcel:
    return await asyncio.wait_for(anext(parcels), 10)


async def nothing_comes(waiting: "asyncio.Task[Parcel]") -> bool:
    for _ in range(5):
        await asyncio.sleep(0)
    return not waiting.done()


async def test_the_oldest_call_carries_the_outputs_of_all() -> None:
    mailbox = Posted()
    _, older = mailbox.begin("a")
    _, younger = mailbox.begin("b")
    mailbox.say("a", "1")
    assert texts(await soon(older)) == {"a": "1"}
    waiting = asyncio.create_task(anext(younger))
    mailbox.say("b", "x")
    assert texts(await soon(older)) == {"b": "x"}
    assert await nothing_comes(waiting)
    waiting.cancel()


async def test_the_last_item_of_a_call_is_its_own_and_another_call_carries_from_then_on() -> None:
    mailbox = Posted(FOREVER_S)
    first, older = mailbox.begin("a")
    _, younger = mailbox.begin("b")
    mailbox.say("a", "1")
    await soon(older)
    waiting = asyncio.create_task(anext(younger))
    mailbox.say("a", "2", is_last=True)
    last = await soon(older)
    assert (texts(last), last.is_last, last.error) == ({"a": "2"}, True, None)
    with pytest.raises(StopAsyncIteration):
        await soon(older)
    assert await nothing_comes(waiting)
    mailbox.close(first)
    mailbox.say("b", "x")
    assert texts(await asyncio.wait_for(waiting, 10)) == {"b": "x"}


async def test_parcels_are_numbered_across_calls() -> None:
    mailbox = Posted()
    _, older = mailbox.begin("a")
    _, younger = mailbox.begin("b")
    mailbox.say("a", "1")
    parcels = [await soon(older)]
    mailbox.say("b", "x", is_last=True)
    parcels.append(await soon(younger))
    mailbox.say("a", "2", is_last=True)
    parcels.append(await soon(older))
    assert [parcel.number for parcel in parcels] == [0, 1, 2]
    assert {parcel.sender for parcel in parcels} == {"replica"}


async def test_what_comes_during_the_pause_is_one_item() -> None:
    mailbox = Posted(0.01)
    _, parcels = mailbox.begin("a", "b")
    mailbox.say("a", "1")
    mailbox.say("b", "x")
    assert texts(await soon(parcels)) == {"a": "1", "b": "x"}
    for text in ("2", "3"):
        mailbox.say("a", text)
    mailbox.say("b", "y")
    assert texts(await soon(parcels)) == {"a": "23", "b": "y"}


async def test_first_and_last_outputs_do_not_wait_for_the_pause() -> None:
    mailbox = Posted(FOREVER_S)
    _, parcels = mailbox.begin("a", "b", "c")
    mailbox.say("a", "1")
    await soon(parcels)
    mailbox.say("a", "2")
    mailbox.say("b", "x")
    assert texts(await soon(parcels)) == {"b": "x"}
    mailbox.say("a", "3", is_last=True)
    assert texts(await soon(parcels)) == {"a": "23"}
    mailbox.say("b", "y")
    waiting = asyncio.create_task(anext(parcels))
    assert await nothing_comes(waiting)
    waiting.cancel()


async def test_an_engine_that_dies_ends_every_call_with_what_its_requests_had_gained() -> None:
    mailbox, death = Posted(FOREVER_S), EngineDeadError("it broke")
    _, older = mailbox.begin("a")
    _, younger = mailbox.begin("b")
    for request_id in ("a", "b"):
        mailbox.say(request_id, "1")
    await soon(older)
    mailbox.say("b", "2")
    mailbox.fail(death)
    for parcels, expected in ((older, {}), (younger, {"b": "2"})):
        last = await soon(parcels)
        assert (texts(last), last.is_last, last.error) == (expected, True, death)


async def test_a_refused_call_has_one_item() -> None:
    mailbox, refusal = Posted(), InvalidRequest("no")
    call, parcels = mailbox.begin("a")
    call.end(refusal)
    assert [parcel.error async for parcel in parcels] == [refusal]


async def test_an_aborted_request_ends_its_call_and_no_other() -> None:
    mailbox = Posted()
    left, parcels = mailbox.begin("a")
    _, stays = mailbox.begin("b")
    mailbox.abort(["a", "unknown"])
    assert (await soon(parcels)).is_last
    assert left.unfinished == {"a"}
    mailbox.close(left)
    mailbox.say("a", "late")
    mailbox.say("b", "x")
    assert texts(await soon(stays)) == {"b": "x"}


def test_few_streams_wait_for_nothing_and_many_are_bounded() -> None:
    assert pause_s(1) < 0.001
    assert pause_s(1000) == MAX_PAUSE_S


async def test_nothing_of_a_call_goes_out_before_it_is_accepted() -> None:
    mailbox = Posted()
    _, other = mailbox.begin("a")
    call = mailbox.open(("b", "c"))
    mailbox.say("b", "x")
    waiting = asyncio.create_task(anext(other))
    assert await nothing_comes(waiting)
    mailbox.accept(call)
    assert texts(await asyncio.wait_for(waiting, 10)) == {"b": "x"}


async def test_a_refused_call_sends_its_error_and_nothing_else() -> None:
    mailbox = Posted()
    _, other = mailbox.begin("a")
    call = mailbox.open(("b", "c"))
    mailbox.say("b", "x")
    call.end(InvalidRequest("no", param="prompt"))
    last = await soon(mailbox.parcels(call))
    assert (last.outputs, last.is_last, str(last.error)) == ((), True, "no")
    mailbox.close(call)
    mailbox.say("a", "1")
    assert texts(await soon(other)) == {"a": "1"}

import asyncio

import pytest

from engine.errors import EngineDeadError
from engine.outputs import RequestOutput
from engine.request import FinishReason
from engine.streams import RequestStreams


def output(request_id: str, *token_ids: int, finish: FinishReason | None = None) -> RequestOutput:
    text = "".join(chr(97 + i) for i in token_ids)
    return RequestOutput(request_id, token_ids, text=text, finish_reason=finish, num_output_tokens=token_ids[-1])


async def test_outputs_that_wait_are_merged_into_one():
    streams = RequestStreams()
    stream = streams.open("a")
    streams.deliver([output("a", 1)])
    streams.deliver([output("a", 2, 3), output("b", 9)])
    merged = await anext(stream)
    assert (merged.token_ids, merged.text, merged.num_output_tokens) == ((1, 2, 3), "bcd", 3)


async def test_stream_ends_after_the_output_with_a_finish_reason():
    streams = RequestStreams()
    stream = streams.open("a")
    streams.deliver([output("a", 1, finish=FinishReason.LENGTH)])
    assert [o.finish_reason async for o in stream] == [FinishReason.LENGTH]


async def test_failure_reaches_every_open_stream_after_what_was_delivered():
    streams = RequestStreams()
    a, b = streams.open("a"), streams.open("b")
    streams.deliver([output("a", 1)])
    streams.fail(EngineDeadError("gone"))
    assert (await anext(a)).token_ids == (1,)
    for stream in (a, b):
        with pytest.raises(EngineDeadError, match="gone"):
            await anext(stream)
    assert len(streams) == 0


async def test_a_consumer_that_waits_is_woken():
    streams = RequestStreams()
    stream = streams.open("a")
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    streams.deliver([output("a", 7)])
    assert (await waiting).token_ids == (7,)


async def test_an_id_cannot_be_open_twice_but_can_be_used_again():
    streams = RequestStreams()
    streams.open("a")
    with pytest.raises(ValueError, match="'a'"):
        streams.open("a")
    streams.close("a")
    streams.open("a")

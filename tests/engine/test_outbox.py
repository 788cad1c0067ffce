"""The outbox: everything at once to whoever asks, and first and last outputs ahead of the rhythm."""

import asyncio

from engine.outbox import Outbox
from engine.outputs import RequestOutput
from engine.request import FinishReason

LONG_S = 60.0


def token(request_id, count, token_id=7, **end):
    return RequestOutput(request_id, token_ids=(token_id,), num_output_tokens=count, **end)


async def test_outputs_of_a_request_come_merged():
    outbox = Outbox()
    for output in (token("a", 1), token("b", 1), token("a", 2, 8)):
        outbox.put(output)
    taken = await outbox.take(LONG_S)
    assert {output.request_id: output.token_ids for output in taken} == {"a": (7, 8), "b": (7,)}
    assert await outbox.take(0) == () and not outbox


async def test_only_first_and_last_outputs_are_urgent():
    outbox = Outbox()
    outbox.put(token("old", 5))
    outbox.put(token("old", 6))
    assert await outbox.take_urgent(0) == ()
    outbox.put(token("new", 1))
    outbox.put(token("ending", 9, finish_reason=FinishReason.LENGTH))
    assert {output.request_id for output in await outbox.take_urgent(LONG_S)} == {"new", "ending"}
    assert [output.token_ids for output in await outbox.take(LONG_S)] == [(7, 7)]


async def test_an_urgent_output_brings_what_its_request_gained_before():
    outbox = Outbox()
    outbox.put(token("a", 5))
    outbox.put(token("a", 6, 8, finish_reason=FinishReason.STOP))
    (output,) = await outbox.take_urgent(LONG_S)
    assert output.token_ids == (7, 8) and output.is_finished


async def test_what_a_resumed_request_gains_first_waits_its_turn():
    outbox = Outbox()
    outbox.put(RequestOutput("resumed", token_ids=(1,), num_output_tokens=4))
    assert await outbox.take_urgent(0) == ()


async def test_whoever_waits_is_woken():
    outbox = Outbox()
    for take in (outbox.take, outbox.take_urgent):
        waiting = asyncio.create_task(take(LONG_S))
        await asyncio.sleep(0)
        outbox.wake()
        assert await asyncio.wait_for(waiting, 10) == ()

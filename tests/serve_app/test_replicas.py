"""HandleReplicas over replicas in this process: what the calls to them carry, and what becomes of it."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from engine.api import EngineDeadError, RequestOutput
from serve_app.errors import to_api_error
from serve_app.parcel import Outputs, Parcel
from serve_app.replicas import HandleReplicas
from tests.helpers import generation
from tests.serve_app.fake_engine import FakeEngine, script
from tests.serve_app.harness import LocalHandle, start_server


def held() -> FakeEngine:
    """An engine whose answers stop before their last token until they are let go."""
    engine = FakeEngine(script("a", "b"))
    engine.hold = asyncio.Event()
    return engine


class Rig:
    def __init__(self, handle: Any, *engines: FakeEngine) -> None:
        self.handle, self.engines = handle, engines
        self.replicas = HandleReplicas(handle)

    @classmethod
    async def over(cls, *engines: FakeEngine) -> "Rig":
        servers = [await start_server(engine) for engine in engines]
        for number, server in enumerate(servers):
            server._replica = f"replica {number}"
        return cls(LocalHandle(*servers), *engines)

    def ask(self, *request_ids: str) -> AsyncGenerator[Outputs, None]:
        return self.replicas.generate(tuple(generation(request_id, [1]) for request_id in request_ids))


async def text_of(stream: AsyncGenerator[Outputs, None]) -> str:
    async with asyncio.timeout(10):
        return "".join([output.text async for outputs in stream for output in outputs])


async def test_a_call_that_carried_for_others_may_end_early() -> None:
    rig = await Rig.over(held())
    (engine,) = rig.engines
    leaves, stays = rig.ask("leaves"), rig.ask("stays")
    await anext(leaves)
    await anext(stays)
    await leaves.aclose()
    await engine.was_aborted(1)
    assert engine.aborted == ["leaves"]
    assert engine.hold is not None
    engine.hold.set()
    assert await text_of(stays) == "b"


async def test_only_the_replica_that_has_a_request_aborts_it() -> None:
    rig = await Rig.over(held(), held())
    streams = []
    for chosen in (0, 1):
        rig.handle.chosen = chosen
        streams.append(rig.ask(f"r{chosen}"))
        await anext(streams[-1])
    await streams[0].aclose()
    await rig.engines[0].was_aborted(1)
    assert [engine.aborted for engine in rig.engines] == [["r0"], []]


async def test_a_client_that_leaves_before_its_request_is_accepted_is_aborted_all_the_same() -> None:
    class Slow(FakeEngine):
        async def begin(self, *args: Any) -> None:
            await accepted.wait()
            await super().begin(*args)

    accepted = asyncio.Event()
    rig = await Rig.over(Slow(script("a", "b")))
    (engine,) = rig.engines
    engine.hold = asyncio.Event()
    asking = asyncio.create_task(anext(rig.ask("r")))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    accepted.set()
    await engine.was_aborted(1)


async def test_an_engine_that_dies_ends_its_own_requests_with_its_error() -> None:
    rig = await Rig.over(FakeEngine(script(*"abcdefgh"), pause_s=0.02), held())
    dies = rig.ask("dies")
    await anext(dies)
    rig.handle.chosen = 1
    lives = rig.ask("lives")
    await anext(lives)
    dying, living = rig.engines
    dying.death = EngineDeadError("it broke")
    with pytest.raises(EngineDeadError, match="it broke"):
        await text_of(dies)
    assert living.hold is not None
    living.hold.set()
    assert await text_of(lives) == "b"


class Scripted:
    """A handle whose calls get what the test puts in their queues: parcels, or an error that breaks them."""

    def __init__(self) -> None:
        self.calls: dict[str, asyncio.Queue[Parcel | Exception]] = {}      # first request_id -> its call
        self.mailboxes: list[str] = []
        self.aborted: asyncio.Queue[tuple[str, ...]] = asyncio.Queue()
        self.generate = self

    def options(self, **options: Any) -> "Scripted":
        return self

    async def remote(self, requests: Any, mailbox: str) -> AsyncGenerator[Parcel, None]:
        queue = self.calls[requests[0].request_id] = asyncio.Queue()
        self.mailboxes.append(mailbox)
        while True:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            yield item
            if item.is_last:
                return

    def broadcast(self, method: str, request_ids: tuple[str, ...]) -> "Scripted":
        self.aborted.put_nowait(request_ids)
        return self

    async def _fetch_replica_results_async(self) -> list[Any]:
        return []


def parcel(number: int, request_id: str, text: str, *, is_last: bool = False) -> Parcel:
    return Parcel("replica", number, (RequestOutput(request_id, text=text),), is_last)


async def asked(rig: Rig, request_id: str) -> "asyncio.Task[str]":
    task = asyncio.create_task(text_of(rig.ask(request_id)))
    while request_id not in rig.handle.calls:
        await asyncio.sleep(0)
    return task


async def test_parcels_that_overtake_one_another_are_put_in_order() -> None:
    rig = Rig(Scripted())
    a, b = await asked(rig, "a"), await asked(rig, "b")
    rig.handle.calls["b"].put_nowait(parcel(2, "b", "late", is_last=True))
    rig.handle.calls["a"].put_nowait(parcel(0, "a", "1"))
    rig.handle.calls["a"].put_nowait(parcel(1, "b", "early "))
    assert await b == "early late"
    rig.handle.calls["a"].put_nowait(parcel(3, "a", "2", is_last=True))
    assert await a == "12"


async def test_a_call_that_breaks_ends_all_that_it_may_have_carried() -> None:
    rig = Rig(Scripted())
    a, b = await asked(rig, "a"), await asked(rig, "b")
    rig.handle.calls["a"].put_nowait(parcel(0, "a", "1"))
    rig.handle.calls["a"].put_nowait(parcel(1, "b", "x"))
    rig.handle.calls["a"].put_nowait(ConnectionError("reset"))
    for task in (a, b):
        with pytest.raises(ConnectionError):
            await task
    assert await rig.handle.aborted.get() == ("b",)
    await asked(rig, "next")
    assert len(set(rig.handle.mailboxes)) == 2             # numbers begin anew


async def test_a_call_that_is_refused_before_anything_came_ends_alone() -> None:
    rig = Rig(Scripted())
    a, b = await asked(rig, "a"), await asked(rig, "b")
    rig.handle.calls["b"].put_nowait(parcel(0, "b", "x"))
    rig.handle.calls["a"].put_nowait(ConnectionError("no replica"))
    with pytest.raises(ConnectionError):
        await a
    rig.handle.calls["b"].put_nowait(parcel(1, "b", "y", is_last=True))
    assert await b == "xy"


async def test_a_call_that_is_cancelled_from_outside_is_an_answer_and_no_silence() -> None:
    rig = Rig(Scripted())
    a = await asked(rig, "a")
    for task in rig.replicas._tasks:
        task.cancel()
    with pytest.raises(Exception, match="cancelled") as failure:
        await a
    error = to_api_error(failure.value)
    assert error is not None and error.status == 503

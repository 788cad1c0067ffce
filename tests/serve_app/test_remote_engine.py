import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError, RayTaskError

from engine.api import ContextTooLong, EngineConfig, EngineDeadError, EngineError, RequestOutput
from serve_app.engine_actor import EngineActor, StepMessage
from serve_app.remote_engine import SILENCE_LIMIT_S, RemoteEngine
from tests.helpers import ManualClock, generation
from tests.serve_app.fake_engine import FakeEngine, script


class Handle:
    """What an actor's handle is to its caller, without a process: calls are tasks, errors come wrapped."""

    def __init__(self, actor: EngineActor) -> None:
        self._actor = actor
        self.lost = False                                  # set: as if the process had died

    def __getattr__(self, name: str) -> "Method":
        return Method(self, getattr(self._actor, name))


class Method:
    def __init__(self, handle: Handle, method: Any) -> None:
        self._handle = handle
        self._method = method

    def options(self, **options: Any) -> "Method":
        return self

    def remote(self, *args: Any) -> Any:
        result = self._method(*args)
        return self._stream(result) if hasattr(result, "__aiter__") else asyncio.ensure_future(self._call(result))

    async def _call(self, result: Any) -> Any:
        if self._handle.lost:
            result.close()
            raise ActorDiedError
        try:
            return await result
        except Exception as error:
            raise RayTaskError("method", "traceback", error).as_instanceof_cause() from None

    async def _stream(self, items: AsyncIterator[StepMessage]) -> AsyncIterator[Any]:
        iterator = aiter(items)
        while True:
            next_item = asyncio.ensure_future(self._call(anext(iterator)))
            try:
                await asyncio.wait((next_item,))
            finally:
                next_item.cancel()
            yield next_item


class Rig:
    """A RemoteEngine over an in-process actor, with its exits noted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fake: FakeEngine) -> None:
        self.killed: list[object] = []
        self.exits: list[int] = []
        self.clock = ManualClock()
        self.fake = fake
        self.handle = Handle(EngineActor(EngineConfig(model="fake"), lambda config: fake))
        monkeypatch.setattr(ray, "kill", self.killed.append)
        monkeypatch.setattr("serve_app.remote_engine.LAST_WORDS_S", 0)
        self.engine = RemoteEngine(self.handle, clock=self.clock, exit_process=self.exits.append)


class Received:
    """A receiver, and what it was told."""

    def __init__(self) -> None:
        self.outputs: asyncio.Queue[RequestOutput] = asyncio.Queue()
        self.error: asyncio.Future[EngineError] = asyncio.get_running_loop().create_future()

    def put(self, output: RequestOutput) -> None:
        self.outputs.put_nowait(output)

    def fail(self, error: EngineError) -> None:
        self.error.set_result(error)

    async def text(self) -> str:
        """Of one request, to its end."""
        text = ""
        while True:
            output = await self.outputs.get()
            text += output.text
            if output.is_finished:
                return text


async def begun(engine: RemoteEngine, request_id: str) -> Received:
    received = Received()
    await engine.begin((generation(request_id, [1]),), received)
    return received


async def text_of(engine: RemoteEngine, request_id: str) -> str:
    return await (await begun(engine, request_id)).text()


async def test_requests_share_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, FakeEngine(script("Hel", "lo")))
    await rig.engine.start()
    assert await asyncio.gather(*(text_of(rig.engine, f"r{i}") for i in range(5))) == ["Hello"] * 5
    assert rig.fake.aborted == []


async def test_a_refusal_keeps_its_type_and_param_and_admits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, FakeEngine())
    await rig.engine.start()
    with pytest.raises(ContextTooLong) as refusal:
        await rig.engine.begin((generation("a", [1]), generation("b", [1], max_tokens=1000)), Received())
    assert refusal.value.param == "max_tokens"
    assert set(rig.fake.aborted) == {"a"}                  # all choices of a request, or none


async def test_what_is_abandoned_is_aborted_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, FakeEngine(script("a", "b")))
    rig.fake.hold = asyncio.Event()
    await rig.engine.start()
    left, stays = [await begun(rig.engine, name) for name in ("left", "stays")]
    await left.outputs.get()
    rig.engine.abandon(["left"])
    await rig.fake.was_aborted(1)
    rig.fake.hold.set()
    assert await stays.text() == "ab"
    assert rig.fake.aborted == ["left"]
    assert left.outputs.empty()


async def test_an_abort_does_not_overtake_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch, FakeEngine())
    rig.fake.hold = asyncio.Event()
    await rig.engine.start()
    asking = asyncio.create_task(begun(rig.engine, "r"))
    await asyncio.sleep(0)                                 # submitted, not yet accepted
    assert not rig.fake.requests
    asking.cancel()
    while not rig.fake.aborted:
        await asyncio.sleep(0)
    assert [request.request_id for request in rig.fake.requests] == rig.fake.aborted == ["r"]


@pytest.mark.parametrize("how", ["engine dies", "process dies"])
async def test_death_is_told_to_receivers_and_ends_the_replica(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    rig = Rig(monkeypatch, FakeEngine(script("a", "b")))
    rig.fake.hold = asyncio.Event()
    await rig.engine.start()
    received = await begun(rig.engine, "r")
    await received.outputs.get()
    if how == "engine dies":
        rig.fake.death = EngineDeadError("a fault in its step")
    else:
        rig.handle.lost = True
    assert str(await asyncio.wait_for(received.error, 10)) in ("a fault in its step", "the engine's process died")
    with pytest.raises(EngineDeadError):
        await rig.engine.check_health()
    with pytest.raises(EngineDeadError):
        await begun(rig.engine, "next")
    await asyncio.sleep(0.01)
    assert rig.killed == [rig.handle]
    assert rig.exits == [1]


async def test_silence_is_death(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve_app.remote_engine.WATCH_EVERY_S", SILENCE_LIMIT_S / 1000)
    monkeypatch.setattr("serve_app.remote_engine.SILENCE_LIMIT_S", SILENCE_LIMIT_S / 500)
    rig = Rig(monkeypatch, FakeEngine())
    await rig.engine.start()                               # heartbeats come, but by a clock that stands still
    rig.clock.now_s += 7
    assert rig.engine.stats().heartbeat_age_s == 7
    await rig.engine._watch()
    with pytest.raises(EngineDeadError, match="silent"):
        await rig.engine.check_health()

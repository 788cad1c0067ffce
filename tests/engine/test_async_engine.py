import asyncio
import threading
import time

import pytest

from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.errors import EngineDeadError, RequestTooLarge
from engine.request import FinishReason
from tests.engine.builders import build_core
from tests.helpers import HashRunner, expected_tokens, generation


async def started(**options) -> AsyncEngine:
    engine = AsyncEngine(EngineConfig(model="none", step_timeout_s=5), build=lambda _: build_core(**options)[0])
    await engine.start()
    return engine


async def until(condition) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.001)


class GatedRunner(HashRunner):
    """Each step waits for a permit, so that a test decides what happens between two steps."""

    def __init__(self) -> None:
        super().__init__(64, 4)
        self.permits = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)

    def execute(self, plan):
        self.entered.release()
        self.permits.acquire()
        return super().execute(plan)


async def test_many_streams_at_once_each_get_their_own_tokens():
    engine = await started()

    async def tokens(i: int) -> list[int]:
        return [t async for o in engine.generate(generation(f"r{i}", [i + 1, 2], 8)) for t in o.token_ids]

    results = await asyncio.gather(*(tokens(i) for i in range(12)))
    assert results == [expected_tokens([i + 1, 2], 8) for i in range(12)]
    await engine.shutdown()


async def test_refusal_is_raised_before_any_output():
    engine = await started(num_blocks=2, block_size=4)
    with pytest.raises(RequestTooLarge):
        await anext(engine.generate(generation("a", [1] * 20)))
    with pytest.raises(RequestTooLarge):
        await engine.submit(generation("b", [1] * 20))
    assert engine.stats().num_requests_waiting == 0
    await engine.shutdown()


async def test_closing_the_iterator_aborts_the_request():
    engine = await started(max_model_len=100_000, num_blocks=30_000)
    outputs = engine.generate(generation("a", [1], 50_000))
    await anext(outputs)
    await outputs.aclose()
    await until(lambda: engine.stats().num_finished == {"abort": 1})
    assert engine.stats().kv_blocks_used == 0
    await engine.shutdown()


async def test_one_multiplexed_stream_carries_all_submitted_requests():
    engine = await started()
    for name in ("a", "b"):
        await engine.submit(generation(name, [ord(name)], 5))
    tokens: dict[str, list[int]] = {"a": [], "b": []}
    open_ids = {"a", "b"}
    async for item in engine.steps():
        assert len({output.request_id for output in item}) == len(item)
        for output in item:
            tokens[output.request_id] += output.token_ids
            if output.is_finished:
                open_ids.discard(output.request_id)
        if not open_ids:
            break
    assert tokens == {name: expected_tokens([ord(name)], 5) for name in ("a", "b")}
    await engine.shutdown()


async def test_in_a_rhythm_first_and_last_outputs_do_not_wait():
    engine, outputs = await started(), []
    await engine.submit(generation("a", [97], 5))
    async with asyncio.timeout(10):
        async for item in engine.steps(lambda num_requests: 3600 * num_requests):
            outputs += item
            if outputs and outputs[-1].is_finished:
                break
    assert [token for output in outputs for token in output.token_ids] == expected_tokens([97], 5)
    assert len(outputs) <= 2
    await engine.shutdown()


async def test_in_a_rhythm_a_dying_engine_still_says_what_it_knows():
    class DiesAfterThree(HashRunner):
        num_steps = 0

        def execute(self, plan):
            self.num_steps += 1
            if self.num_steps > 3:
                raise RuntimeError("device lost")
            return super().execute(plan)

    engine, tokens = await started(runner=DiesAfterThree(64, 4)), []
    await engine.submit(generation("a", [97], 50))
    with pytest.raises(EngineDeadError, match="device lost"):
        async with asyncio.timeout(10):
            async for item in engine.steps(lambda num_requests: 3600.0):
                tokens += [token for output in item for token in output.token_ids]
    assert tokens == expected_tokens([97], 3)


async def test_idle_engine_sends_heartbeats_and_is_healthy():
    engine = await started()
    steps = engine.steps()
    assert await anext(steps) == ()
    await engine.check_health()
    await engine.shutdown()


async def test_fault_in_a_step_ends_everything_with_its_cause():
    class Broken(HashRunner):
        def execute(self, plan):
            raise RuntimeError("device lost")

    engine = await started(runner=Broken(64, 4))
    with pytest.raises(EngineDeadError, match="device lost"):
        await anext(engine.generate(generation("a", [1])))
    with pytest.raises(EngineDeadError, match="device lost"):
        await engine.check_health()
    with pytest.raises(EngineDeadError, match="device lost"):
        await engine.submit(generation("b", [1]))
    with pytest.raises(EngineDeadError, match="device lost"):
        async for _ in engine.steps():
            pass


async def test_step_that_never_ends_is_unhealthy_and_a_busy_one_is_not():
    runner, now = GatedRunner(), [0.0]
    engine = AsyncEngine(
        EngineConfig(model="none", step_timeout_s=5), build=lambda _: build_core(runner=runner)[0], clock=lambda: now[0]
    )
    await engine.start()
    stream = asyncio.ensure_future(anext(engine.generate(generation("a", [1], 1))))
    await asyncio.to_thread(runner.entered.acquire)
    now[0] = 4.0
    await engine.check_health()
    assert engine.stats().is_stepping
    now[0] = 6.0
    with pytest.raises(EngineDeadError, match="one step has run for 6 s"):
        await engine.check_health()
    runner.permits.release()
    assert (await stream).is_finished
    await engine.shutdown()


async def test_abort_between_steps_reaches_a_request_that_is_running():
    runner = GatedRunner()
    engine = await started(runner=runner)
    await engine.submit(generation("a", [1], 50))
    await asyncio.to_thread(runner.entered.acquire)
    await engine.abort("a")
    runner.permits.release(2)
    reasons = []
    async for item in engine.steps():
        reasons += [output.finish_reason for output in item if output.is_finished]
        if reasons:
            break
    assert reasons == [FinishReason.ABORT]
    await engine.shutdown()


async def test_shutdown_ends_open_requests_with_abort_and_refuses_new_ones():
    engine = await started(max_model_len=100_000, num_blocks=30_000)
    outputs = engine.generate(generation("a", [1], 50_000))
    await anext(outputs)
    await engine.shutdown()
    rest = [output async for output in outputs]
    assert rest[-1].finish_reason is FinishReason.ABORT
    with pytest.raises(EngineDeadError, match="shutting down"):
        await anext(engine.generate(generation("b", [1])))


async def test_drain_returns_what_is_unfinished():
    engine = await started(max_model_len=100_000, num_blocks=30_000)
    outputs = engine.generate(generation("a", [1], 50_000))
    said = list((await anext(outputs)).token_ids)
    (continuation,) = await engine.drain()
    said += [t async for output in outputs for t in output.token_ids]
    assert list(continuation.request.resume_token_ids) == said == expected_tokens([1], len(said))
    await engine.shutdown()


@pytest.mark.parametrize("policy", ["static", "static_impatient"])
async def test_a_policy_that_holds_back_is_asked_again_in_time_and_not_all_the_time(policy, monkeypatch):
    """One request where a batch is four: it starts when nobody else has come, and the thread sleeps until then."""
    num_steps = 0
    step = EngineCore.step

    def counted(core):
        nonlocal num_steps
        num_steps += 1
        return step(core)

    monkeypatch.setattr(EngineCore, "step", counted)
    waits = {"static": {"queue_end_ms": 50}, "static_impatient": {"max_wait_ms": 50}}
    engine = await started(policy=policy, batch_size=4, clock=time.monotonic, **waits[policy])
    tokens = [t async for output in engine.generate(generation("a", [1], 3)) for t in output.token_ids]
    assert tokens == expected_tokens([1], 3)
    assert num_steps < 20
    await engine.shutdown()


async def test_a_full_batch_does_not_wait():
    engine = await started(policy="static", batch_size=2, clock=time.monotonic, queue_end_ms=1e9)
    for name in ("a", "b"):
        await engine.submit(generation(name, [ord(name)], 3))
    async with asyncio.timeout(10):
        async for item in engine.steps():
            if any(output.is_finished for output in item):
                break
    await engine.shutdown()


async def test_freed_memory_is_given_back_once_each_time_the_engine_has_nothing_to_do(monkeypatch):
    given_back = []
    monkeypatch.setattr("engine.async_engine.IDLE_WAIT_S", 0.01)
    monkeypatch.setattr("engine.async_engine.give_back_freed_memory", lambda: given_back.append("all"))
    engine = await started()
    for rest in (1, 2):
        await until(lambda: len(given_back) == rest)           # noqa: B023 - it is awaited in this round
        rounds = engine._heartbeat_s
        await until(lambda: engine._heartbeat_s > rounds + 0.05)   # noqa: B023
        assert len(given_back) == rest
        assert [output async for output in engine.generate(generation(f"r{rest}", [1, 2], 2))]
    await engine.shutdown()

"""Encoders behind the Engine protocol: the same thread, streams and health as generation."""

import asyncio

import pytest

from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.errors import EngineDeadError, InvalidRequest
from tests.engine.encoding.builders import build_encoder_core, embedding
from tests.helpers import generation


async def started(**options):
    core, runner, _ = build_encoder_core(**options)
    engine = AsyncEngine(EngineConfig(model="none", step_timeout_s=5), build=lambda _: core)
    await engine.start()
    return engine, runner


async def test_many_texts_at_once_each_get_their_own_vector():
    engine, runner = await started()
    outputs = await asyncio.gather(*(engine.embed(embedding(f"r{i}", i + 10, i)) for i in range(5)))
    assert [list(output.vector_values()) for output in outputs] == [[2 * i + 10, 2] for i in range(5)]
    assert sorted(name for step in runner.steps for name in step) == [f"r{i}" for i in range(5)]
    await engine.check_health()
    await engine.shutdown()


async def test_submitted_texts_come_through_the_one_stream():
    engine, _ = await started()
    await engine.submit(embedding("a", 1, 2))
    async for outputs in engine.steps():
        if outputs:
            break
    assert [(output.request_id, list(output.vector_values())) for output in outputs] == [("a", [3, 2])]
    await engine.shutdown()


async def test_refusals_are_raised_and_leave_the_engine_alive():
    engine, _ = await started()
    with pytest.raises(InvalidRequest):
        await engine.embed(embedding("a", 1000))
    with pytest.raises(InvalidRequest, match="generates none"):
        await anext(engine.generate(generation("b", [1])))
    assert list((await engine.embed(embedding("a", 1))).vector_values()) == [1, 1]
    await engine.shutdown()


async def test_a_fault_in_a_step_fails_the_engine_as_a_whole():
    engine, runner = await started()

    def fail():
        raise RuntimeError("the device was lost")

    runner.broken = fail
    with pytest.raises(EngineDeadError, match="the device was lost"):
        await engine.embed(embedding("a", 1))
    with pytest.raises(EngineDeadError):
        await engine.check_health()

"""AsyncEngine and grammars: compiled beside the step loop, before a request reaches it."""

import asyncio
import threading

import pytest

from engine.async_engine import AsyncEngine
from engine.config import EngineConfig
from engine.errors import InvalidRequest, QueueFull
from engine.sampling.grammar import cache
from engine.sampling.grammar.compiler import compile_grammar
from engine.sampling.grammar.spec import GrammarSpec
from tests.engine.builders import build_core
from tests.engine.sampling.grammar.tokenizers import grammars
from tests.helpers import expected_tokens, generation


class Gate:
    """Holds up the compile of grammars that begin with "slow"."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.opened = threading.Event()

    def __call__(self, vocabulary, spec):
        if spec.text.startswith("slow"):
            self.entered.release()
            assert self.opened.wait(30)
        return compile_grammar(vocabulary, spec)


@pytest.fixture
def gate(monkeypatch):
    gate = Gate()
    monkeypatch.setattr(cache, "compile_grammar", gate)
    yield gate
    gate.opened.set()


async def started(**config) -> AsyncEngine:
    """Over a runner that draws what it likes: grammars are compiled for it, and not followed."""
    core, _ = build_core()
    core.grammars = grammars(**config)
    engine = AsyncEngine(EngineConfig(model="none"), build=lambda _: core)
    await engine.start()
    await asyncio.wrap_future(core.grammars.compiled(GrammarSpec("regex", "ready")))
    return engine


async def tokens(engine: AsyncEngine, name: str, text: str | None) -> list[int]:
    spec = None if text is None else GrammarSpec("regex", text, "guided_regex")
    request = generation(name, [1, 2], 6, {"grammar": spec})
    return [token for output in [o async for o in engine.generate(request)] for token in output.token_ids]


async def test_others_are_served_while_a_grammar_is_compiled(gate):
    engine = await started()
    waiting = asyncio.create_task(tokens(engine, "slow", "slow"))
    await asyncio.to_thread(gate.entered.acquire)
    assert await tokens(engine, "free", None) == expected_tokens([1, 2], 6)
    assert await tokens(engine, "quick", "quick") == expected_tokens([1, 2], 6)
    assert not waiting.done() and engine.stats().num_requests_waiting == 0
    gate.opened.set()
    assert await waiting == expected_tokens([1, 2], 6)
    await engine.shutdown()


async def test_a_grammar_that_takes_too_long_is_refused_in_time_and_leaves_nothing(gate):
    engine = await started(compile_timeout_s=0.05)
    with pytest.raises(InvalidRequest, match=r"within 0\.05 s") as caught:
        await engine.submit(generation("a", [1], 6, {"grammar": GrammarSpec("regex", "slow", "guided_regex")}))
    assert caught.value.param == "guided_regex"
    assert await tokens(engine, "a", "ready") == expected_tokens([1, 2], 6)
    await engine.shutdown()


async def test_when_all_threads_are_busy_a_client_is_asked_to_come_again(gate):
    engine = await started(compile_timeout_s=0.05)
    for name in ("slow 1", "slow 2"):
        with pytest.raises(InvalidRequest):
            await tokens(engine, name, name)
    with pytest.raises(QueueFull):
        await tokens(engine, "quick", "quick")
    gate.opened.set()
    assert await tokens(engine, "cached", "ready") == expected_tokens([1, 2], 6)
    await engine.shutdown()


async def test_a_bad_grammar_is_refused_before_any_output():
    engine = await started()
    with pytest.raises(InvalidRequest, match=r"guided_regex: .*regex"):
        await tokens(engine, "a", "([")
    assert await tokens(engine, "a", None) == expected_tokens([1, 2], 6)
    await engine.shutdown()


async def test_a_client_that_leaves_while_its_grammar_is_compiled_leaves_nothing(gate):
    engine = await started()
    waiting = asyncio.create_task(tokens(engine, "a", "slow"))
    await asyncio.to_thread(gate.entered.acquire)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.opened.set()
    assert await tokens(engine, "a", "slow") == expected_tokens([1, 2], 6)
    assert engine.stats().num_finished == {"length": 1}
    await engine.shutdown()

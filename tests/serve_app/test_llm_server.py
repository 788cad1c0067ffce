"""LLMServer behind a Serve handle, in Serve's local testing mode."""

from collections.abc import Iterator
from typing import Any

import pytest
from ray import serve

from engine.api import ContextTooLong
from serve_app.config import AppConfig
from serve_app.llm_server import LLMServer
from serve_app.replicas import HandleReplicas
from tests.helpers import generation
from tests.serve_app.fake_engine import FakeEngine, script


@pytest.fixture(scope="module")
def handle() -> Iterator[Any]:
    deployment: Any = serve.deployment(LLMServer)
    config = AppConfig(model="fake", served_model_name="ours")
    app = deployment.bind(config, lambda config: FakeEngine(script("Hel", "lo")))
    yield serve.run(app, _local_testing_mode=True)


async def test_all_choices_of_a_request_come_in_one_stream(handle: Any) -> None:
    requests = (generation("a", [1]), generation("b", [1]))
    texts = {"a": "", "b": ""}
    finished = []
    async for outputs in HandleReplicas(handle).generate(requests):
        for output in outputs:
            texts[output.request_id] += output.text
            finished += [output.request_id] if output.is_finished else []
    assert texts == {"a": "Hello", "b": "Hello"}
    assert sorted(finished) == ["a", "b"]


async def test_a_refusal_crosses_as_itself(handle: Any) -> None:
    with pytest.raises(ContextTooLong) as refusal:
        await anext(HandleReplicas(handle).generate((generation("a", [1], max_tokens=1000),)))
    assert refusal.value.param == "max_tokens"


async def test_stats_come_from_every_replica(handle: Any) -> None:
    (replica,) = await HandleReplicas(handle).stats(timeout_s=1)
    assert replica.is_alive
    assert replica.stats.model == "ours"

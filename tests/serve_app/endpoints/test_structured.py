"""Structured output between HTTP and the engine: it arrives with every choice, a refusal names its field."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.api import GrammarSpec, InvalidRequest
from tests.serve_app.fake_engine import FakeEngine
from tests.serve_app.harness import serving

PROMPTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
}
SCHEMA = {"type": "object", "properties": {"b": {"const": None}, "a": {}}}


@pytest.mark.parametrize("path", PROMPTS)
async def test_every_choice_carries_the_grammar(tiny_model: Path, path: str) -> None:
    engine = FakeEngine()
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    async with serving(engine, tiny_model) as client:
        response = await client.post(path, json=PROMPTS[path] | {"n": 2, "response_format": schema})
    assert response.status_code == 200
    spec = GrammarSpec("json_schema", json.dumps(SCHEMA))
    assert [request.sampling.grammar for request in engine.requests] == [spec, spec]


@pytest.mark.parametrize("path", PROMPTS)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_engine_cannot_compile_is_a_400(tiny_model: Path, path: str, stream: bool) -> None:
    class Refusing(FakeEngine):
        def _accept(self, request: Any) -> None:
            raise InvalidRequest("guided_regex: unclosed group", param=request.sampling.grammar.param)

    async with serving(Refusing(), tiny_model) as client:
        response = await client.post(path, json=PROMPTS[path] | {"guided_regex": "(", "stream": stream})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["message"]) == ("guided_regex", "guided_regex: unclosed group")

"""Tool calls over real HTTP: a model that writes one, and one that would write something else if it could."""

import json
from typing import Any

import jsonschema
import openai
import pytest

from tests.integration.conftest import Application

pytestmark = pytest.mark.integration

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"enum": [1, 2, 3]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
LAX: Any = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
STRICT: Any = {"type": "function", "function": {"name": "f", "strict": True, "parameters": PARAMETERS}}
OTHER: Any = {"type": "function", "function": {"name": "g"}}
USER: Any = [{"role": "user", "content": "x C"}]


def client(application: Application) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{application.url}/v1", api_key="none", max_retries=0)


async def test_a_call_whole_and_streamed(script: Application) -> None:
    async with client(script) as api:
        whole = await api.chat.completions.create(model="script", messages=USER, tools=[LAX], temperature=0, n=2)
        async with api.chat.completions.stream(model="script", messages=USER, tools=[LAX], temperature=0) as stream:
            async for _ in stream:
                pass
            streamed = await stream.get_final_completion()
    for choice in (*whole.choices, *streamed.choices):
        assert (choice.message.content, choice.finish_reason) == ("Ok", "tool_calls")
        assert choice.message.tool_calls is not None
        (call,) = choice.message.tool_calls
        assert (call.function.name, call.function.arguments) == ("f", '{"city": "Besançon"}')  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "choice, names", [("required", {"f", "g"}), ({"type": "function", "function": {"name": "f"}}, {"f"})]
)
async def test_a_call_that_is_required_is_valid(script: Application, choice: Any, names: set[str]) -> None:
    async with client(script) as api:
        answer = await api.chat.completions.create(
            model="script", messages=USER, tools=[STRICT, OTHER], tool_choice=choice, parallel_tool_calls=False,
            temperature=1, seed=1, n=4, max_tokens=400,
        )  # fmt: skip
    for completed in answer.choices:
        assert (completed.message.content, completed.finish_reason) == (None, "tool_calls")
        assert completed.message.tool_calls is not None
        (call,) = completed.message.tool_calls
        assert call.function.name in names  # type: ignore[union-attr]
        if call.function.name == "f":  # type: ignore[union-attr]
            jsonschema.validate(json.loads(call.function.arguments), PARAMETERS)  # type: ignore[union-attr]


def test_a_schema_that_no_grammar_can_hold_is_refused(script: Application) -> None:
    bad = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": 5}}}}
    response = script.post("/v1/chat/completions", {"messages": USER, "tools": [bad], "tool_choice": "required"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")
    script.assert_alive()

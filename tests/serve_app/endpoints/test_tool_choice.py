"""What clients may say about tools, and what comes of it."""

from pathlib import Path
from typing import Any

import pytest

from engine.api import load_tokenizer
from tests.serve_app.endpoints.tool_answers import (
    CALL,
    PARAMETERS,
    PATH,
    STRICT,
    USER,
    F,
    G,
    ask,
    engine_of,
    message_of,
    write_model,
)  # fmt: skip
from tests.serve_app.harness import serving


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    return write_model(tmp_path_factory.mktemp("tools"))


def subset(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


async def test_only_allowed_tools_are_called(model: Path) -> None:
    whole, _ = await ask(model, CALL, {"tool_choice": subset("auto", "g")})
    assert message_of(whole)["calls"] == []


@pytest.mark.parametrize("body, enforced, named", [
    ({}, False, ["f", "g"]),
    ({"tool_choice": "auto", "parallel_tool_calls": False}, False, ["f", "g"]),
    ({"tool_choice": "none", "tools": [STRICT]}, False, []),
    ({"tool_choice": "required"}, True, ["f", "g"]),
    ({"tool_choice": {"type": "function", "function": {"name": "g"}}}, True, ["g"]),
    ({"tool_choice": subset("required", "f")}, True, ["f"]),
    ({"tool_choice": subset("auto", "f")}, False, ["f"]),
    ({"tools": [STRICT, G]}, True, ["f", "g"]),
])  # fmt: skip
async def test_calls_that_have_to_be_valid_come_by_a_grammar(
    model: Path, body: dict[str, Any], enforced: bool, named: list[str]
) -> None:
    engine = engine_of(*CALL)
    async with serving(engine, model) as client:
        response = await client.post(PATH, json={"messages": [USER], "tools": [F, G]} | body)
    assert response.status_code == 200
    (request,) = engine.requests
    grammar = request.sampling.grammar
    assert (grammar is not None) is enforced
    if grammar is not None:
        assert (grammar.kind, grammar.param) == ("lark", "tools")
        assert [name for name in "fg" if f'\\"name\\": \\"{name}\\"' in grammar.text] == named
    prompt = load_tokenizer(model).decode(request.prompt_token_ids, skip_special_tokens=False)
    assert [name for name in "fg" if f'"name": "{name}"' in prompt] == named


async def test_schemas_are_enforced_where_the_client_wants_it(model: Path) -> None:
    engine = engine_of()
    async with serving(engine, model) as client:
        await client.post(PATH, json={"messages": [USER], "tools": [F, G], "tool_choice": "required"})
        lax = STRICT | {"function": G["function"] | {"parameters": PARAMETERS}}
        await client.post(PATH, json={"messages": [USER], "tools": [STRICT, lax]})
    required, strict = (request.sampling.grammar for request in engine.requests)
    assert required is not None and strict is not None
    assert required.text.count('"integer"') == strict.text.count('"integer"') == 1
    assert "section" not in required.text and "section" in strict.text


async def test_a_named_function_is_called_once(model: Path) -> None:
    choice = {"type": "function", "function": {"name": "f"}}
    whole, _ = await ask(model, (*CALL, *CALL), {"tool_choice": choice})
    assert len(message_of(whole)["calls"]) == 1
    assert message_of(whole)["finish_reason"] == "tool_calls"


async def test_structured_output_is_content_whatever_it_looks_like(model: Path) -> None:
    body = {"tools": None, "response_format": {"type": "json_object"}, "chat_template_kwargs": {"opening": "<think>"}}
    whole, _ = await ask(model, ('{"a"', ": 1}"), body)
    assert message_of(whole) == {"content": '{"a": 1}', "reasoning": "", "calls": [], "finish_reason": "stop"}


@pytest.mark.parametrize("body, param", [
    ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0]"),
    ({"tools": [{"type": "function", "function": {"name": "f g"}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
     "tools[0].function.parameters"),
    ({"tools": [{"type": "function", "function": {"name": "f", "parameter": {}}}]}, "tools[0].function.parameter"),
    ({"tools": [F, F]}, "tools"),
    ({"tools": [G] * 129}, "tools"),
    ({"tool_choice": "sometimes"}, "tool_choice"),
    ({"tool_choice": {"type": "custom"}}, "tool_choice"),
    ({"tool_choice": 5}, "tool_choice"),
    ({"tool_choice": {"type": "function"}}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "h"}}}, "tool_choice"),
    ({"tools": None, "tool_choice": "required"}, "tool_choice"),
    ({"tools": None, "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ({"parallel_tool_calls": "yes"}, "parallel_tool_calls"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"function_call": {"name": "f"}}, "function_call"),
])  # fmt: skip
async def test_what_makes_no_sense_is_refused_by_name(model: Path, body: dict[str, Any], param: str) -> None:
    async with serving(engine_of(), model) as client:
        response = await client.post(PATH, json={"messages": [USER], "tools": [F, G]} | body)
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(param)


async def test_a_model_that_knows_no_tools_is_not_asked_for_calls(tiny_model: Path, tmp_path: Path) -> None:
    template = tmp_path / "plain.jinja"
    template.write_text("{{ messages[0].content }}")
    async with serving(engine_of(), tiny_model, chat_template=str(template)) as client:
        response = await client.post(PATH, json={"messages": [USER], "tools": [F]})
        none = await client.post(PATH, json={"messages": [USER], "tools": [F], "tool_choice": "none"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")
    assert "chat template" in response.json()["error"]["message"]
    assert none.status_code == 200


async def test_tools_count_among_the_tokens_of_a_conversation(model: Path) -> None:
    engine = engine_of()
    body = {"messages": [USER], "tools": [F, G]}
    async with serving(engine, model) as client:
        counted = await client.post("/tokenize", json=body)
        await client.post(PATH, json=body)
    assert tuple(counted.json()["tokens"]) == engine.requests[0].prompt_token_ids

"""Calls and reasoning over the chat endpoint, answers scripted."""

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from engine.api import load_tokenizer
from tests.serve_app.endpoints.tool_answers import (
    CALL,
    MALFORMED,
    PATH,
    USER,
    F,
    G,
    ask,
    engine_of,
    folded,
    message_of,
    without_ids,
    write_model,
)  # fmt: skip
from tests.serve_app.harness import serving


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    return write_model(tmp_path_factory.mktemp("tools"))


@pytest.mark.parametrize("pieces", [
    CALL,
    ("Well", " 🌶.\n", *CALL, "\n", *CALL, " done"),
    ("<think>", "\nHm", "\n</th", "ink>\n\n", *CALL),
    ("<think>Hm</think>Yes", " or no"),
    ("just", " text ", ""),
    MALFORMED,
    CALL[:-2],
])  # fmt: skip
async def test_streamed_and_whole_answers_are_equal(model: Path, pieces: tuple[str, ...]) -> None:
    whole, chunks = await ask(model, pieces, {"n": 2})
    for index in (0, 1):
        assert without_ids(folded(chunks, index)) == without_ids(message_of(whole, index))


async def test_a_call(model: Path) -> None:
    whole, chunks = await ask(model, CALL, {})
    (choice,) = whole["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    assert (call["type"], call["function"]) == ("function", {"name": "f", "arguments": '{"x": 1}'})
    assert call["id"].startswith("call_")
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": None}
    (first,) = deltas[1]["tool_calls"]
    assert first == {"index": 0, "id": first["id"], "type": "function", "function": {"name": "f", "arguments": ""}}
    rest = [call for delta in deltas[2:-1] for call in delta["tool_calls"]]
    assert {call["index"] for call in rest} == {0}
    assert "".join(call["function"]["arguments"] for call in rest) == '{"x": 1}'
    assert deltas[-1] == {}


async def test_ids_are_never_the_same(model: Path) -> None:
    whole, _ = await ask(model, (*CALL, *CALL), {"n": 3})
    ids = [call["id"] for choice in whole["choices"] for call in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 6


async def test_reasoning_has_a_field_of_its_own(model: Path) -> None:
    whole, chunks = await ask(model, ("<think>", "\nHm", " so", "\n</think>", "\n\nYes"), {"tools": None})
    assert message_of(whole) == {"content": "Yes", "reasoning": "Hm so", "calls": [], "finish_reason": "stop"}
    assert without_ids(folded(chunks)) == message_of(whole)
    assert all("tool_calls" not in chunk["choices"][0]["delta"] for chunk in chunks)


async def test_the_template_may_open_the_reasoning(model: Path) -> None:
    body = {"chat_template_kwargs": {"opening": "<think>\n"}}
    whole, _ = await ask(model, ("Hm</thi", "nk>Yes"), body)
    assert message_of(whole) == {"content": "Yes", "reasoning": "Hm", "calls": [], "finish_reason": "stop"}
    whole, _ = await ask(model, ("Hm", " so"), body | {"max_tokens": 2})
    assert whole["choices"][0]["message"]["content"] is None
    assert message_of(whole) == {"content": "", "reasoning": "Hm so", "calls": [], "finish_reason": "length"}


async def test_malformed_calls_are_content(model: Path) -> None:
    whole, _ = await ask(model, MALFORMED, {})
    assert message_of(whole) == {"content": "".join(MALFORMED), "reasoning": "", "calls": [], "finish_reason": "stop"}


async def test_a_call_that_is_cut_says_so(model: Path) -> None:
    whole, _ = await ask(model, CALL, {"max_tokens": 3})
    message = message_of(whole)
    assert message["calls"][0]["function"] == {"name": "f", "arguments": '{"x'}
    assert message["finish_reason"] == "length"


async def test_one_call_unless_parallel_ones_are_welcome(model: Path) -> None:
    whole, chunks = await ask(model, (*CALL, *CALL, " ok"), {"parallel_tool_calls": False})
    assert len(message_of(whole)["calls"]) == 1
    assert without_ids(folded(chunks)) == without_ids(message_of(whole))


@pytest.mark.parametrize("body", [{"tools": None}, {"tools": []}, {"tool_choice": "none"}])
async def test_without_tools_nothing_is_a_call(model: Path, body: dict[str, Any]) -> None:
    whole, _ = await ask(model, CALL, body)
    assert message_of(whole)["content"] == "".join(CALL)
    assert whole["choices"][0]["finish_reason"] == "stop"


async def test_logprobs_cover_the_tokens_of_calls(model: Path) -> None:
    whole, chunks = await ask(model, CALL, {"logprobs": True})
    entries = whole["choices"][0]["logprobs"]["content"]
    assert len(entries) == len(CALL)
    streamed = [c["choices"][0]["logprobs"]["content"] for c in chunks if c["choices"][0]["logprobs"]]
    assert [entry for piece in streamed for entry in piece] == entries


async def test_the_template_is_given_tools_and_the_history_of_calls(model: Path) -> None:
    engine = engine_of()
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 7}'}}
    messages = [
        USER,
        {"role": "assistant", "content": None, "reasoning_content": "Hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "49"},
    ]
    strict = {"type": "function", "function": F["function"] | {"strict": False}}
    async with serving(engine, model) as client:
        response = await client.post(PATH, json={"messages": messages, "tools": [strict, G]})
    assert response.status_code == 200
    nothing = {"type": "function", "function": {"name": "g", "parameters": {"type": "object", "properties": {}}}}
    expected = "".join(json.dumps(tool) + "\n" for tool in (F, nothing))
    expected += "Answer with <tool_call>.[user]hi[assistant]Hm<f 7>[tool]49"
    tokenizer = load_tokenizer(model)
    assert tokenizer.decode(engine.requests[0].prompt_token_ids, skip_special_tokens=False) == expected


async def test_parsers_are_chosen_in_the_configuration(model: Path) -> None:
    pieces = ("[TOOL_CALLS]", 'f[ARGS]{"x": 1}')
    whole, _ = await ask(model, pieces, {}, tool_parser="mistral", reasoning_parser="none")
    (call,) = message_of(whole)["calls"]
    assert len(call["id"]) == 9 and call["id"].isalnum()
    async with serving(engine_of(), model, tool_parser="none") as client:
        response = await client.post(PATH, json={"messages": [USER], "tools": [F]})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")
    assert "tool_parser" in response.json()["error"]["message"]


async def test_special_markers_are_in_the_text_for_the_parser_only(model: Path, tmp_path: Path) -> None:
    write_model(tmp_path, special=("<tool_call>", "</think>"))
    tokenizer = load_tokenizer(tmp_path)
    kept = {tokenizer.special_token_id("<tool_call>"), tokenizer.special_token_id("</think>")}
    engine = engine_of("<tool_call>", "x")
    async with serving(engine, tmp_path) as client:
        with_tools = await client.post(PATH, json={"messages": [USER], "tools": [F]})
        await client.post(PATH, json={"messages": [USER]})
        raw = await client.post(PATH, json={"messages": [USER], "tools": [F], "skip_special_tokens": False})
    assert set(engine.requests[0].sampling.kept_special_token_ids) == kept
    assert engine.requests[1].sampling.kept_special_token_ids == (tokenizer.special_token_id("</think>"),)
    assert with_tools.json()["choices"][0]["message"]["content"] == "x"
    assert raw.json()["choices"][0]["message"]["content"] == "<tool_call>x"


async def test_the_openai_client_reads_streamed_calls(model: Path) -> None:
    async with serving(engine_of(*CALL, *CALL), model) as http:
        api = openai.AsyncOpenAI(base_url="http://test/v1", api_key="none", http_client=http, max_retries=0)
        async with api.chat.completions.stream(model="tiny", messages=[USER], tools=[F]) as stream:  # type: ignore[list-item]
            async for _ in stream:
                pass
            completion = await stream.get_final_completion()
    calls = completion.choices[0].message.tool_calls
    assert calls is not None
    assert [call.function.arguments for call in calls] == ['{"x": 1}'] * 2

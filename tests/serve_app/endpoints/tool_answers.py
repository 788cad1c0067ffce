"""Tools over the chat endpoint: a template that takes them, scripted answers, and what clients make of those."""

import json
from pathlib import Path
from typing import Any

from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.serve_app.fake_engine import FakeEngine, script
from tests.serve_app.harness import events, serving
from tests.tiny_tokenizer import write_tiny_tokenizer

PATH = "/v1/chat/completions"
USER = {"role": "user", "content": "hi"}
TEMPLATE = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}Answer with <tool_call>.{% endif %}"
    "{% for message in messages %}[{{ message.role }}]{{ message.reasoning_content }}{{ message.content or '' }}"
    "{% for call in message.tool_calls or () %}<{{ call.function.name }} {{ call.function.arguments.x }}>{% endfor %}"
    "{% endfor %}{% if false %}</think>{% endif %}{{ opening }}"
)
PARAMETERS = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
F: dict[str, Any] = {"type": "function", "function": {"name": "f", "description": "does f", "parameters": PARAMETERS}}
G: dict[str, Any] = {"type": "function", "function": {"name": "g"}}
STRICT = {"type": "function", "function": F["function"] | {"strict": True}}
CALL = ("<tool", '_call>\n{"name"', ': "f", "arguments": {"x', '": 1}}', "\n</tool_call>")
MALFORMED = ("<tool_call>", '{"name": "nobody"', ', "arguments": {}}', "</tool_call>")


def write_model(folder: Path, special: tuple[str, ...] = ()) -> Path:
    """All that the ingress reads of a model that takes tools."""
    write_tiny_tokenizer(folder, chat_template=TEMPLATE, special=special)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder


def engine_of(*pieces: str) -> FakeEngine:
    return FakeEngine(script(*pieces), max_model_len=2048)


async def ask(model: Path, pieces: tuple[str, ...], body: dict[str, Any], **config: Any) -> tuple[Any, Any]:
    """The whole answer, and the chunks of the streamed one."""
    request = {"messages": [USER], "tools": [F, G]} | body
    async with serving(engine_of(*pieces), model, **config) as client:
        whole = await client.post(PATH, json=request)
        streamed = await client.post(PATH, json=request | {"stream": True})
    assert whole.status_code == streamed.status_code == 200, whole.text
    *chunks, done = events(streamed.text)
    assert done == "[DONE]"
    ChatCompletion.model_validate(whole.json())
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
    return whole.json(), chunks


def folded(chunks: list[Any], index: int = 0) -> dict[str, Any]:
    """What a client makes of the deltas of one choice."""
    content, reasoning, calls, reasons = "", "", {}, []
    for choice in (chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index):
        delta = choice["delta"]
        content += delta.get("content") or ""
        reasoning += delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert call["index"] == len(calls)
                assert call["function"]["arguments"] == ""
                calls[call["index"]] = {"id": call["id"], "type": call["type"], "function": dict(call["function"])}
            else:
                assert call["function"]["arguments"]
                calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
        reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
    (reason,) = reasons
    return {"content": content, "reasoning": reasoning, "calls": list(calls.values()), "finish_reason": reason}


def message_of(answer: Any, index: int = 0) -> dict[str, Any]:
    choice = answer["choices"][index]
    message = choice["message"]
    return {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning_content", ""),
        "calls": message.get("tool_calls", []),
        "finish_reason": choice["finish_reason"],
    }


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    return message | {"calls": [call | {"id": ""} for call in message["calls"]]}

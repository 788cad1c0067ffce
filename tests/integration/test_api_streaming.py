"""Streams over real HTTP: what is cut into pieces is the whole answer, exactly."""

from typing import Any

import pytest

from tests.integration.conftest import Application
from tests.integration.sse import Streamed, stream

pytestmark = pytest.mark.integration

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def request(path: str, text: str, **fields: Any) -> dict[str, Any]:
    """A greedy request whose prompt ends in `text`, which names the scripted answer."""
    prompt = {"prompt": f"x y {text}"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": text}]}
    return prompt | {"temperature": 0, "max_tokens": 16} | fields


def whole(application: Application, path: str, body: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """text, finish reason, usage"""
    response = application.post(path, body)
    assert response.status_code == 200, response.text
    answer = response.json()
    (choice,) = answer["choices"]
    text = choice["text"] if path == COMPLETIONS else choice["message"]["content"]
    return text, choice["finish_reason"], answer["usage"]


def assert_same(streamed: Streamed, text: str, finish_reason: str) -> None:
    assert streamed.text() == text
    assert streamed.finish_reasons() == [finish_reason]
    assert streamed.num_done == 1
    assert streamed.error is None


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_st_01_a_character_over_several_tokens_stays_whole(script: Application, path: str) -> None:
    text, finish_reason, _ = whole(script, path, request(path, "P"))
    streamed = stream(script, path, request(path, "P"))
    assert (text, finish_reason) == (" Hot 🌶 done", "stop")
    assert_same(streamed, text, "stop")
    assert not any("\ufffd" in delta for delta in streamed.deltas())
    assert sum("🌶" in delta for delta in streamed.deltas()) == 1
    script.assert_alive()


def test_st_03_invalid_bytes_are_not_held_back(script: Application) -> None:
    text, finish_reason, usage = whole(script, COMPLETIONS, request(COMPLETIONS, "R", max_tokens=400))
    streamed = stream(script, COMPLETIONS, request(COMPLETIONS, "R", max_tokens=400))
    assert text == "\ufffd" * 400
    assert finish_reason == "length"
    assert usage["completion_tokens"] == 400
    assert_same(streamed, text, "length")
    assert len(streamed.deltas()[0]) <= 12


def test_st_03_cost_per_token_does_not_grow(script: Application) -> None:
    seconds = {}
    for num_tokens in (400, 1600):
        streamed = stream(script, COMPLETIONS, request(COMPLETIONS, "R", max_tokens=num_tokens))
        assert streamed.text() == "\ufffd" * num_tokens
        seconds[num_tokens] = streamed.times_s[-1] - streamed.times_s[0]
    assert seconds[1600] < 6 * seconds[400]


@pytest.mark.parametrize(("max_tokens", "finish_reason"), [(32, "stop"), (5, "length")])
def test_st_04_text_held_back_for_a_stop_string_is_not_lost(
    script: Application, max_tokens: int, finish_reason: str
) -> None:
    body = request(COMPLETIONS, "V", max_tokens=max_tokens, stop=["TRE\nAAAAAAAA"])
    text, whole_reason, _ = whole(script, COMPLETIONS, body)
    assert (text, whole_reason) == (" UNO DUE TRE", finish_reason)
    assert_same(stream(script, COMPLETIONS, body), text, finish_reason)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_st_06_usage_comes_once_and_when_asked_for(script: Application, path: str) -> None:
    _, _, usage = whole(script, path, request(path, "P"))
    asked = stream(script, path, request(path, "P", stream_options={"include_usage": True}))
    assert [chunk["choices"] for chunk in asked.chunks].index([]) == len(asked.chunks) - 1
    # the prompt is in the prefix cache the second time
    assert {k: v for k, v in asked.chunks[-1]["usage"].items() if k.endswith("tokens")} == {
        k: v for k, v in usage.items() if k.endswith("tokens")
    }
    assert all(chunk.get("usage") is None for chunk in asked.chunks[:-1])
    for options in ({}, None):
        streamed = stream(script, path, request(path, "P", stream_options=options))
        assert all(chunk["choices"] and chunk.get("usage") is None for chunk in streamed.chunks)
    refused = script.post(path, request(path, "P", stream_options={"include_usage": True}))
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "stream_options"


@pytest.mark.parametrize(
    ("fields", "text", "finish_reason"),
    [
        ({"max_tokens": 16}, " UNO DUE TRE", "stop"),
        ({"max_tokens": 2}, " UNO", "length"),
        ({"max_tokens": 5, "stop": ["TRE"]}, " UNO DUE ", "stop"),
    ],
)
def test_st_07_role_finish_reason_and_done(
    script: Application, fields: dict[str, Any], text: str, finish_reason: str
) -> None:
    body = request(CHAT, "V", **fields)
    assert whole(script, CHAT, body)[:2] == (text, finish_reason)
    streamed = stream(script, CHAT, body)
    assert_same(streamed, text, finish_reason)
    assert [choice["delta"].get("role") for choice in streamed.choices][:2] == ["assistant", None]
    assert sum("role" in choice["delta"] for choice in streamed.choices) == 1
    assert {chunk["object"] for chunk in streamed.chunks} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["model"], chunk["created"]) for chunk in streamed.chunks}) == 1


def test_many_streams_at_once_do_not_mix(script: Application) -> None:
    from concurrent.futures import ThreadPoolExecutor

    answers = {"P": " Hot 🌶 done", "V": " UNO DUE TRE"}
    names = ["P", "V"] * 16
    with ThreadPoolExecutor(32) as pool:
        texts = pool.map(lambda name: stream(script, CHAT, request(CHAT, name)).text(), names)
        assert list(texts) == [answers[name] for name in names]

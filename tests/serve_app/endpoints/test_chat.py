from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.api import ConfigError
from tests.serve_app.fake_engine import MAX_MODEL_LEN, FakeEngine, script
from tests.serve_app.harness import events, serving

USER = [{"role": "user", "content": "hi"}]
PATH = "/v1/chat/completions"


async def test_whole_answer(tiny_model: Path) -> None:
    async with serving(FakeEngine(script("Hel", "lo")), tiny_model) as client:
        response = await client.post(PATH, json={"model": "tiny", "messages": USER})
    body = response.json()
    assert response.status_code == 200
    assert body["object"] == "chat.completion"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]


async def test_stream_has_role_first_and_one_finish_per_choice(tiny_model: Path) -> None:
    async with serving(FakeEngine(script("Hel", "lo")), tiny_model) as client:
        response = await client.post(PATH, json={"messages": USER, "stream": True, "n": 2})
    *chunks, done = events(response.text)
    assert done == "[DONE]"
    assert response.headers["content-type"].startswith("text/event-stream")
    for index in (0, 1):
        deltas = [c["choices"][0]["delta"] for c in chunks if c["choices"][0]["index"] == index]
        reasons = [c["choices"][0]["finish_reason"] for c in chunks if c["choices"][0]["index"] == index]
        assert [delta.get("role") for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
        assert "".join(delta.get("content", "") for delta in deltas) == "Hello"
        assert [reason for reason in reasons if reason] == ["stop"]
    assert {(c["id"], c["created"], c["model"], c["object"]) for c in chunks} == {
        (chunks[0]["id"], chunks[0]["created"], "tiny", "chat.completion.chunk")
    }


@pytest.mark.parametrize("options", [{}, None, {"include_usage": False}])
async def test_no_usage_unless_asked_for(tiny_model: Path, options: object) -> None:
    async with serving(FakeEngine(), tiny_model) as client:
        response = await client.post(PATH, json={"messages": USER, "stream": True, "stream_options": options})
    chunks = events(response.text)[:-1]
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


async def test_usage_chunk_comes_last_and_equals_the_whole_answer_s(tiny_model: Path) -> None:
    request: dict[str, Any] = {"messages": USER}
    async with serving(FakeEngine(), tiny_model) as client:
        whole = await client.post(PATH, json=request)
        streamed = await client.post(PATH, json=request | {"stream": True, "stream_options": {"include_usage": True}})
    *chunks, last, done = events(streamed.text)
    assert done == "[DONE]"
    assert last["choices"] == []
    assert last["usage"] == whole.json()["usage"]
    assert all("usage" not in chunk for chunk in chunks)


async def test_stream_options_without_stream_are_refused(tiny_model: Path) -> None:
    async with serving(FakeEngine(), tiny_model) as client:
        response = await client.post(PATH, json={"messages": USER, "stream_options": {"include_usage": True}})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "stream_options"


async def test_template_renders_roles_and_parts(tiny_model: Path) -> None:
    engine = FakeEngine()
    messages = [
        {"role": "developer", "content": "be"},
        {"role": "user", "content": [{"type": "text", "text": "Say"}, {"type": "text", "text": " hi"}]},
        {"role": "assistant", "content": "hi", "refusal": None, "tool_calls": None},
        {"role": "user", "content": "again", "name": "me"},
    ]
    async with serving(engine, tiny_model) as client:
        response = await client.post(PATH, json={"messages": messages})
        tokenizer = client.app.state.service.tokenizer  # type: ignore[attr-defined]
    assert response.status_code == 200
    text = "<|im_start|>system\nbe<|im_start|>user\nSay hi<|im_start|>assistant\nhi<|im_start|>user\nagain"
    assert tokenizer.decode(engine.requests[0].prompt_token_ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": []}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "wizard", "content": "x"}],
        [{"content": "x"}],
        "hi",
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_messages_that_cannot_be_rendered_are_refused(tiny_model: Path, messages: object, stream: bool) -> None:
    async with serving(FakeEngine(), tiny_model) as client:
        response = await client.post(PATH, json={"messages": messages, "stream": stream})
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith("messages")


async def test_omitted_max_tokens_is_the_rest_of_the_context(tiny_model: Path) -> None:
    engine = FakeEngine()
    async with serving(engine, tiny_model) as client:
        await client.post(PATH, json={"messages": USER, "max_tokens": None})
    (request,) = engine.requests
    assert len(request.prompt_token_ids) + request.sampling.max_tokens == MAX_MODEL_LEN


async def test_max_completion_tokens_wins(tiny_model: Path) -> None:
    engine = FakeEngine()
    async with serving(engine, tiny_model) as client:
        await client.post(PATH, json={"messages": USER, "max_completion_tokens": 3, "max_tokens": 50})
    assert engine.requests[0].sampling.max_tokens == 3


async def test_logprobs_carry_bytes_and_alternatives(tiny_model: Path) -> None:
    request = {"messages": USER, "logprobs": True, "top_logprobs": 1}
    async with serving(FakeEngine(script("a", "b")), tiny_model) as client:
        whole = await client.post(PATH, json=request)
        streamed = await client.post(PATH, json=request | {"stream": True})
    content = whole.json()["choices"][0]["logprobs"]["content"]
    assert [(entry["token"], entry["bytes"]) for entry in content] == [("a", [97]), ("b", [98])]
    assert [entry["logprob"] for entry in content] == [-0.5, -0.5]
    assert content[0]["top_logprobs"] == [{"token": "A", "bytes": [65], "logprob": -1.0}]
    pieces = [c["choices"][0]["logprobs"] for c in events(streamed.text)[:-1]]
    assert [entry for piece in pieces if piece for entry in piece["content"]] == content


async def test_sdk_nulls_mean_omitted(tiny_model: Path) -> None:
    fields = (
        "temperature top_p n max_tokens stop seed stream stream_options logit_bias logprobs top_logprobs "
        "presence_penalty frequency_penalty response_format tools user"
    )
    nulls = dict.fromkeys(fields.split())
    engine = FakeEngine()
    async with serving(engine, tiny_model) as client:
        assert (await client.post(PATH, json={"messages": USER} | nulls)).status_code == 200
        assert (await client.post(PATH, json={"messages": USER})).status_code == 200
    with_nulls, without = (replace(request.sampling, seed=0) for request in engine.requests)
    assert with_nulls == without


async def test_the_last_message_is_continued_if_asked_for(tiny_model: Path) -> None:
    engine = FakeEngine()
    messages = [*USER, {"role": "assistant", "content": "Well"}]
    async with serving(engine, tiny_model) as client:
        fields = {"continue_final_message": True, "add_generation_prompt": False}
        response = await client.post("/v1/chat/completions", json={"messages": messages} | fields)
        both = await client.post("/v1/chat/completions", json={"messages": messages, "continue_final_message": True})
    assert response.status_code == 200
    assert bytes(engine.requests[0].prompt_token_ids[-4:]) == b"Well"
    assert (both.status_code, both.json()["error"]["param"]) == (400, "continue_final_message")


async def test_the_template_may_be_the_servers_and_take_arguments(tiny_model: Path, tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text("{{ mood }}: {{ messages[0].content }}{% if add_generation_prompt %} ->{% endif %}")
    engine = FakeEngine()
    async with serving(engine, tiny_model, chat_template=str(template)) as client:
        for fields in ({"chat_template_kwargs": {"mood": "calm"}}, {"add_generation_prompt": False}):
            await client.post("/v1/chat/completions", json={"messages": USER} | fields)
        reserved = await client.post(
            "/v1/chat/completions", json={"messages": USER, "chat_template_kwargs": {"messages": []}}
        )
    assert [bytes(request.prompt_token_ids) for request in engine.requests] == [b"calm: hi ->", b": hi"]
    assert (reserved.status_code, reserved.json()["error"]["param"]) == (400, "chat_template_kwargs")


@pytest.mark.parametrize("source", [None, "{% if %}"], ids=["missing", "malformed"])
async def test_a_template_that_is_none_stops_the_start(tiny_model: Path, tmp_path: Path, source: str | None) -> None:
    template = tmp_path / "template.jinja"
    if source is not None:
        template.write_text(source)
    with pytest.raises(ConfigError, match="chat_template: "):
        async with serving(FakeEngine(), tiny_model, chat_template=str(template)):
            pass


async def test_prompt_logprobs_are_told_beside_the_choices(tiny_model: Path) -> None:
    async with serving(FakeEngine(), tiny_model) as client:
        answer = (await client.post("/v1/chat/completions", json={"messages": USER, "prompt_logprobs": 0})).json()
    assert answer["prompt_logprobs"][0] is None
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]

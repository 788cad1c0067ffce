"""TE-01, TE-03, TE-05: what reaches the engine of a conversation, by the template of the model; over HTTP."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import gguf
import httpx
import pytest
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from tests.helpers_demo import demo_path
from tests.helpers_gguf import write_header
from tests.serve_app.fake_engine import FakeEngine
from tests.serve_app.harness import serving
from tests.tiny_tokenizer import CHAT_TEMPLATE, EOS, tiny_tokenizer

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BOS = "<bos>"
STRICT = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}"
    "<|im_start|>{{ message.role }}\n{{ message.content | trim }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HI = [{"role": "user", "content": "hi"}]
PARTS = [{"type": "text", "text": "Say"}, {"type": "text", "text": " hi"}]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVEYOR_CACHE", str(tmp_path_factory.getbasetemp() / "templates-cache"))


def says(*roles: str) -> list[dict[str, str]]:
    return [{"role": role, "content": "hi"} for role in roles]


def tokenizer_with(template: str | None, *, adds_bos: bool = True) -> PreTrainedTokenizerFast:
    tokenizer = tiny_tokenizer(special=[BOS], chat_template=template)
    if adds_bos:
        tokenizer.add_special_tokens({"bos_token": BOS})
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=[BOS, "$A"], special_tokens=[(BOS, tokenizer.bos_token_id)]
        )
    return tokenizer


def write_folder(folder: Path, tokenizer: PreTrainedTokenizerFast) -> Path:
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder


def write_gguf_header(path: Path, tokenizer: PreTrainedTokenizerFast) -> Path:
    """The same tokenizer as a header tells of it."""
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    control = {EOS, "<|im_start|>", BOS}
    kinds = [gguf.TokenType.CONTROL if token in control else gguf.TokenType.NORMAL for token in tokens]
    metadata: list[tuple[Any, ...]] = [
        ("add_tokenizer_model", "gpt2"), ("add_tokenizer_pre", "gpt-2"), ("add_token_list", tokens),
        ("add_token_types", kinds), ("add_eos_token_id", tokenizer.eos_token_id),
        ("add_add_bos_token", tokenizer.bos_token_id is not None), ("add_chat_template", tokenizer.chat_template),
    ]  # fmt: skip
    if tokenizer.bos_token_id is not None:
        metadata.append(("add_bos_token_id", tokenizer.bos_token_id))
    return write_header(path, "llama", metadata)


@asynccontextmanager
async def served(folder: Path, template: str | None) -> AsyncIterator[tuple[FakeEngine, httpx.AsyncClient]]:
    engine = FakeEngine()
    async with serving(engine, write_folder(folder, tokenizer_with(template))) as client:
        yield engine, client


async def assert_alive(client: httpx.AsyncClient) -> None:
    answer = await client.post(COMPLETIONS, json={"prompt": "Hello", "max_tokens": 4, "temperature": 0})
    assert answer.status_code == 200


@pytest.mark.parametrize("adds_bos", [True, False], ids=["with BOS", "without"])
@pytest.mark.parametrize("kind", ["folder", "gguf"])
async def test_te_01_prompts_hold_one_bos_if_any(tmp_path: Path, kind: str, adds_bos: bool) -> None:
    original = tokenizer_with(STRICT, adds_bos=adds_bos)
    write = {"folder": write_folder, "gguf": write_gguf_header}[kind]
    model, engine = write(tmp_path / f"model.{kind}", original), FakeEngine()
    ids = [original.convert_tokens_to_ids(BOS), 104, 105]
    asked = [
        (CHAT, {"messages": HI}, original.apply_chat_template(HI, add_generation_prompt=True, return_dict=False)),
        (COMPLETIONS, {"prompt": "hi"}, original("hi").input_ids),
        (COMPLETIONS, {"prompt": "<bos>hi"}, ids),
        (COMPLETIONS, {"prompt": ids}, ids),
        (COMPLETIONS, {"prompt": ids[1:]}, ids[1:]),
        (COMPLETIONS, {"prompt": ids[:1] + ids}, ids[:1] + ids),
    ]
    async with serving(engine, model) as client:
        for path, body, expected in asked:
            answer = await client.post(path, json=body | {"max_tokens": 1})
            assert answer.json()["usage"]["prompt_tokens"] == len(expected), body
            assert list(engine.requests[-1].prompt_token_ids) == expected, body
        counted = (await client.post("/tokenize", json={"messages": HI})).json()
    assert counted["tokens"] == asked[0][2]
    assert [ids[0] in expected for _, _, expected in asked[:2]] == [adds_bos] * 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("roles", "message"),
    [
        (("system", "user"), "System role not supported"),
        (("developer", "user"), "System role not supported"),
        (("user", "user"), "Roles must alternate"),
        (("assistant",), "Roles must alternate"),
        (("wizard",), "Roles must alternate"),
    ],
)
async def test_te_03_a_template_refuses_in_its_own_words(
    tmp_path: Path, roles: tuple[str, ...], message: str, stream: bool
) -> None:
    async with served(tmp_path, STRICT) as (engine, client):
        refusal = await client.post(CHAT, json={"messages": says(*roles), "stream": stream, "max_tokens": 1})
        counted = await client.post("/tokenize", json={"messages": says(*roles)})
        assert engine.requests == []
        await assert_alive(client)
        allowed = await client.post(CHAT, json={"messages": says("user", "assistant", "user"), "max_tokens": 1})
    for answer in (refusal, counted):
        assert (answer.status_code, answer.headers["content-type"]) == (400, "application/json")
        assert (answer.json()["error"]["message"], answer.json()["error"]["param"]) == (message, "messages")
    assert allowed.status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_te_03_a_model_without_a_template_completes_but_does_not_chat(tmp_path: Path, stream: bool) -> None:
    async with served(tmp_path, None) as (_, client):
        refusal = await client.post(CHAT, json={"messages": HI, "stream": stream})
        await assert_alive(client)
    assert (refusal.status_code, refusal.headers["content-type"]) == (400, "application/json")
    assert "has no chat template" in refusal.json()["error"]["message"]


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}", "{% for i in range(10**9) %}x{% endfor %}", "{{ messages.__init__.__globals__ }}",
        "{% for i in range(1000000000) %}x{% endfor %}", "{{ 'x' * 1000000000 }}", "{{ 1 / 0 }}",
        "{% if %}", "{{ messages[0].content.nope.more }}",
    ],
)  # fmt: skip
async def test_te_03_what_a_template_must_not_or_cannot_do_is_refused(tmp_path: Path, template: str) -> None:
    async with served(tmp_path, template) as (_, client):
        refusal = await client.post(CHAT, json={"messages": HI})
        await assert_alive(client)
    assert (refusal.status_code, refusal.headers["content-type"]) == (400, "application/json")
    assert "chat template" in refusal.json()["error"]["message"]


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
async def test_te_05_text_parts_are_the_text_they_join_to(tmp_path: Path, role: str) -> None:
    async with served(tmp_path, CHAT_TEMPLATE) as (engine, client):
        usages = [
            (await client.post(CHAT, json={"messages": [*HI, {"role": role, "content": content}]})).json()["usage"]
            for content in (PARTS, "Say hi", [{"type": "text", "text": "Say hi"}, {"type": "text", "text": ""}])
        ]
    assert len({request.prompt_token_ids for request in engine.requests}) == 1
    assert usages[0] == usages[1] == usages[2]


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
@pytest.mark.parametrize("stream", [False, True])
async def test_te_05_other_parts_are_refused(tmp_path: Path, role: str, stream: bool) -> None:
    contents: dict[str, Any] = {
        "takes text only": [*PARTS, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}],
        "'input_audio': this model takes text only": [{"type": "input_audio", "input_audio": {"data": "AA"}}],
        "unknown type: 'nope'": [{"type": "nope"}],
        "unknown type: None": [{"text": "hi"}],
        "text must be a string": [{"type": "text"}],
        "content[1].text must be a string": [{"type": "text", "text": "a"}, {"type": "text", "text": None}],
        "content[0].text must be": [{"type": "text", "text": ["hi"]}],
        "a list of parts": [],
        "which are objects": ["hi"],
        "unknown field 'size'": [{"type": "text", "text": "hi", "size": 3}],
    }
    async with served(tmp_path, CHAT_TEMPLATE) as (engine, client):
        for message, content in contents.items():
            body = {"messages": [*HI, {"role": role, "content": content}], "stream": stream}
            refusal = await client.post(CHAT, json=body)
            assert (refusal.status_code, refusal.headers["content-type"]) == (400, "application/json"), content
            assert message in refusal.json()["error"]["message"], content
            assert refusal.json()["error"]["param"].startswith("messages"), content
        assert engine.requests == []
        await assert_alive(client)


@pytest.mark.demo
@pytest.mark.exhaustive
async def test_te_01_and_te_05_on_the_demo_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its template raises TypeError for content that is a list; it has no BOS."""
    monkeypatch.delenv("CONVEYOR_CACHE")
    engine = FakeEngine(max_model_len=2048)
    async with serving(engine, demo_path()) as client:
        answer = await client.post(COMPLETIONS, json={"prompt": "Hello", "max_tokens": 1})
        assert answer.json()["usage"]["prompt_tokens"] == 1
        for role in ("system", "user", "assistant", "tool"):
            for content in (PARTS, "Say hi"):
                body = {"messages": [*HI, {"role": role, "content": content}], "max_tokens": 4}
                assert (await client.post(CHAT, json=body)).status_code == 200
            parts, text = (request.prompt_token_ids for request in engine.requests[-2:])
            assert parts == text
        image = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
        refusal = await client.post(CHAT, json={"messages": [{"role": "user", "content": [image]}]})
    assert (refusal.status_code, "takes text only" in refusal.json()["error"]["message"]) == (400, True)

"""A scripted model over a tokenizer of Llama's kind: "▁" for spaces, one leading space stripped, a BOS token."""

from collections.abc import Iterator
from typing import Any

import pytest
from ray import serve
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from serve_app.app import build_app
from serve_app.config import AppConfig
from tests.engine.text import tiny
from tests.integration.asking import CHAT, COMPLETIONS, refusal
from tests.integration.conftest import Application, Cluster
from tests.integration.sse import stream
from tests.scripted_model import Chain, scripted_llama

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

QUEEN = ("▁", "Dae", "ner", "ys", "▁is", "▁the", "▁queen")          # the answer to what ends in a colon
TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    pipeline = tiny.sentencepiece()
    pipeline.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pipeline, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


@pytest.fixture(scope="module")
def queen(
    cluster: Cluster, tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Application]:
    folder = tmp_path_factory.mktemp("queen")
    (colon, bos, eos, *answer) = tokenizer.convert_tokens_to_ids([":", "<s>", "</s>", *QUEEN])
    short = tokenizer.convert_tokens_to_ids(["▁a", "日"])
    scripted_llama({colon: Chain(answer), bos: Chain(short)}, len(tokenizer), eos).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    serve.run(build_app(AppConfig(model=str(folder), device="cpu", num_threads=1)), name="queen", route_prefix="/queen")
    yield Application("queen", f"{cluster.url}/queen")
    serve.delete("queen")


def text_after(tokenizer: PreTrainedTokenizerFast, prompt: list[int], output: tuple[str, ...]) -> str:
    """decode(prompt + output) without decode(prompt)"""
    both = tokenizer.decode([*prompt, *tokenizer.convert_tokens_to_ids(list(output))], skip_special_tokens=True)
    return both[len(tokenizer.decode(prompt, skip_special_tokens=True)) :]


def test_st_09_spaces_between_pieces_and_the_first_one_are_kept(
    queen: Application, tokenizer: PreTrainedTokenizerFast
) -> None:
    for prompt in ("The answer:", ":", "a a  : :", " :"):
        ids = tokenizer(prompt)["input_ids"]
        expected = text_after(tokenizer, ids, QUEEN)
        assert expected == " Daenerys is the queen"
        for asked in (prompt, ids, [prompt, prompt]):
            body: dict[str, Any] = {"prompt": asked, "max_tokens": 16, "temperature": 0, "n": 2}
            for echo in (False, True):
                shown = prompt if isinstance(asked, str) or asked == [prompt, prompt] else tokenizer.decode(ids[1:])
                texts = [choice["text"] for choice in queen.complete(body | {"echo": echo})["choices"]]
                assert set(texts) == {shown + expected if echo else expected}
                streamed = stream(queen, COMPLETIONS, body | {"echo": echo})
                assert [streamed.text(index) for index in range(len(texts))] == texts
                assert streamed.num_done == 1
    queen.assert_alive()


def test_st_09_a_chat_streams_what_it_answers_whole(queen: Application) -> None:
    body = {"messages": [{"role": "user", "content": "The answer:"}], "temperature": 0, "n": 2, "logprobs": True}
    response = queen.post(CHAT, body)
    assert response.status_code == 200, response.text
    streamed = stream(queen, CHAT, body)
    for choice in response.json()["choices"]:
        content = choice["message"]["content"]
        assert content == streamed.text(choice["index"])
        assert content.strip() == "Daenerys is the queen"
        entries = choice["logprobs"]["content"]
        assert b"".join(bytes(entry["bytes"]) for entry in entries).decode().strip() == content.strip()


def test_st_09_offsets_are_places_in_the_text(queen: Application) -> None:
    body: dict[str, Any] = {"prompt": "The answer:", "max_tokens": 16, "temperature": 0, "logprobs": 1}
    for echo in (False, True):
        choice = queen.complete(body | {"echo": echo})["choices"][0]
        lists = choice["logprobs"]
        assert lists["text_offset"][-1] == choice["text"].index(" queen")
        for token, offset in zip(lists["tokens"], lists["text_offset"], strict=True):
            assert offset == 0 or choice["text"].startswith(token, offset)


def test_va_02_an_empty_prompt_is_the_bos_token(queen: Application, tokenizer: PreTrainedTokenizerFast) -> None:
    for prompt in ("", [0], [""]):
        body: dict[str, Any] = {"prompt": prompt, "max_tokens": 2, "temperature": 0}
        answer = queen.complete(body)
        assert answer["usage"]["prompt_tokens"] == 1
        assert answer["choices"][0]["text"] == text_after(tokenizer, [0], ("▁a", "日")) == "a日"
        assert stream(queen, COMPLETIONS, body).text() == "a日"
    assert refusal(queen.post(COMPLETIONS, {"prompt": []}))["param"] == "prompt"
    assert refusal(queen.post(COMPLETIONS, {"prompt": [[]]}))["param"] == "prompt"


def test_te_01_bos_is_there_once(queen: Application, tokenizer: PreTrainedTokenizerFast) -> None:
    def token_ids(**asked: Any) -> list[int]:
        ids: list[int] = queen.post("/tokenize", asked).json()["tokens"]
        return ids

    (bos,) = tokenizer.convert_tokens_to_ids(["<s>"])
    assert token_ids(prompt="The answer:") == tokenizer("The answer:")["input_ids"]
    for prompt in ("The answer:", "<s>The answer:", "<s> The answer:", ""):
        ids = token_ids(prompt=prompt)
        assert (ids[0], ids.count(bos)) == (bos, 1)
        for asked in (prompt, ids):
            answer = queen.complete({"prompt": asked, "max_tokens": 1})
            assert answer["usage"]["prompt_tokens"] == len(ids)
    assert queen.complete({"prompt": [*ids[1:], 5], "max_tokens": 1})["usage"]["prompt_tokens"] == len(ids)
    messages = [{"role": "user", "content": "The answer:"}]
    rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    chat = queen.post(CHAT, {"messages": messages, "max_tokens": 1, "temperature": 0}).json()
    assert chat["usage"]["prompt_tokens"] == len(getattr(rendered, "input_ids", rendered))

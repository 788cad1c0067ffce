"""LO-06 and TE-01 on the whole server: a model whose files disagree on its end, and whose prompts begin with BOS."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray import serve
from tokenizers import processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from serve_app.app import build_app
from serve_app.config import AppConfig
from tests.ends_model import OTHER, TEXT, write_ends_model
from tests.helpers_models import reference, reference_tokens
from tests.integration.conftest import Application, Cluster
from tests.integration.sse import stream
from tests.tiny_tokenizer import EOS

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
USER = [{"role": "user", "content": "xU"}]
ASKED: dict[str, Any] = {CHAT: {"messages": USER}, COMPLETIONS: {"prompt": "xU"}}
MAX_TOKENS = 12
TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message.role }}\n{{ message.content }}{% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its end is in a list of generation_config.json; config and tokenizer name another, which is its BOS too."""
    folder = tmp_path_factory.mktemp("ends")
    write_ends_model(folder, tokenizer=OTHER, config=OTHER, generation=[OTHER, EOS])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"bos_token": OTHER})
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=[OTHER, "$A"], special_tokens=[(OTHER, tokenizer.bos_token_id)]
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(folder)
    return tokenizer


@pytest.fixture(scope="module")
def ends(cluster: Cluster, folder: Path) -> Iterator[Application]:
    """Beside the applications of other files, and gone when this one is done: it takes a CPU."""
    config = AppConfig(
        model=str(folder), served_model_name="ends", device="cpu", dtype="float32", num_threads=1,
        kv_cache={"capacity_tokens": 2048},
    )  # fmt: skip
    serve.run(build_app(config), name="ends", route_prefix="/ends")
    yield Application("ends", f"{cluster.url}/ends")
    serve.delete("ends")


def answers(application: Application, path: str, fields: dict[str, Any]) -> Iterator[tuple[str, str, int]]:
    """Text, finish reason and number of tokens of the answer, whole and streamed."""
    body = ASKED[path] | {"max_tokens": MAX_TOKENS, "temperature": 0} | fields
    whole = application.post(path, body).json()
    choice = whole["choices"][0]
    text = choice["message"]["content"] if path == CHAT else choice["text"]
    yield text, choice["finish_reason"], whole["usage"]["completion_tokens"]
    streamed = stream(application, path, body | {"stream_options": {"include_usage": True}})
    (reason,) = streamed.finish_reasons()
    yield streamed.text(), reason, streamed.chunks[-1]["usage"]["completion_tokens"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_lo_06_an_end_token_of_a_list_ends_and_is_not_text(ends: Application, path: str) -> None:
    for answer in answers(ends, path, {}):
        assert answer == (TEXT, "stop", 3)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_lo_06_an_end_token_is_gone_beyond_if_asked_for(ends: Application, path: str) -> None:
    for text, reason, count in answers(ends, path, {"ignore_eos": True}):
        assert (reason, count) == ("length", MAX_TOKENS)
        assert text.startswith(TEXT) and EOS not in text


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_lo_06_no_end_token_comes_before_min_tokens(ends: Application, path: str) -> None:
    for text, reason, count in answers(ends, path, {"min_tokens": 6}):
        assert (reason, count) == ("stop", 7)
        assert text.startswith(TEXT) and EOS not in text


def test_te_01_prompts_are_those_of_transformers_and_so_are_answers(
    ends: Application, folder: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    bos = tokenizer.bos_token_id
    rendered = tokenizer.apply_chat_template(USER, add_generation_prompt=True, return_dict=False)
    asked: list[tuple[str, dict[str, Any], list[int]]] = [
        (CHAT, {"messages": USER}, rendered),
        (COMPLETIONS, {"prompt": "xU"}, tokenizer("xU").input_ids),
        (COMPLETIONS, {"prompt": OTHER + "xU"}, tokenizer("xU").input_ids),
        (COMPLETIONS, {"prompt": rendered[1:]}, rendered[1:]),
    ]
    assert [ids.count(bos) for _, _, ids in asked] == [1, 1, 1, 0]
    model = reference(folder)
    for path, body, ids in asked:
        answer = ends.post(path, body | {"max_tokens": 2, "temperature": 0}).json()
        choice = answer["choices"][0]
        text = choice["message"]["content"] if path == CHAT else choice["text"]
        assert answer["usage"]["prompt_tokens"] == len(ids)
        assert text == tokenizer.decode(reference_tokens(model, ids, 2))

"""Log probabilities over real HTTP: bytes and offsets of partial characters, scores of prompts, raw values always."""

from collections import defaultdict
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from tests.helpers_models import reference_logits
from tests.integration.asking import CHAT, COMPLETIONS, spelled, strict_json, tokens_of
from tests.integration.conftest import Application
from tests.integration.sse import stream

pytestmark = pytest.mark.integration

WHOLE_OR_STREAMED = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
PEPPER = " Hot 🌶 done"
PEPPER_BYTES = [[32, 72, 111, 116], [32, 240, 159, 140][:3], [140], [182], [32, 100, 111, 110, 101]]


def choices_of(application: Application, path: str, body: dict[str, Any], *, streamed: bool) -> list[dict[str, Any]]:
    """Choices in order, each with `text` and `logprobs`; those of a stream are joined."""
    if not streamed:
        response = application.post(path, body)
        assert response.status_code == 200, response.text
        choices: list[dict[str, Any]] = strict_json(response)["choices"]
        return [choice | ({"text": choice["message"]["content"]} if path == CHAT else {}) for choice in choices]
    events = stream(application, path, body)
    assert (events.num_done, events.error) == (1, None)
    joined: dict[int, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for choice in events.choices:
        for key, values in (choice["logprobs"] or {}).items():
            joined[choice["index"]][key] += values or []
    return [{"index": i, "text": events.text(i), "logprobs": dict(joined[i])} for i in sorted(joined)]


@WHOLE_OR_STREAMED
@pytest.mark.parametrize("n", [1, 3])
def test_st_10_bytes_of_a_chat_join_to_its_content(script: Application, n: int, streamed: bool) -> None:
    body = {"messages": [{"role": "user", "content": "P"}], "logprobs": True, "top_logprobs": 2, "n": n}
    choices = choices_of(script, CHAT, body | {"max_tokens": 16, "temperature": 0}, streamed=streamed)
    assert len(choices) == n
    for choice in choices:
        entries = choice["logprobs"]["content"]
        assert [entry["bytes"] for entry in entries] == PEPPER_BYTES
        assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == choice["text"] == PEPPER
        for entry in entries:
            assert len(entry["top_logprobs"]) == 2
            assert entry["top_logprobs"][0] == {key: entry[key] for key in ("token", "logprob", "bytes")}
            assert all(bytes(top["bytes"]).decode(errors="replace") == top["token"] for top in entry["top_logprobs"])


@WHOLE_OR_STREAMED
@pytest.mark.parametrize("echoed", [False, True], ids=["alone", "echoed"])
def test_st_10_offsets_of_a_completion_count_characters(script: Application, echoed: bool, streamed: bool) -> None:
    prompts = ["x y P", "日本 é🌶P"]
    body = {"prompt": prompts, "logprobs": 2, "n": 2, "max_tokens": 16, "temperature": 0, "echo": echoed}
    choices = choices_of(script, COMPLETIONS, body, streamed=streamed)
    assert len(choices) == 4
    for choice in choices:
        prompt = prompts[choice["index"] // 2] if echoed else ""
        lists, text = choice["logprobs"], choice["text"]
        assert text == prompt + PEPPER
        assert len({len(values) for values in lists.values()}) == 1
        assert len(lists["tokens"]) == len(choice_tokens(script, prompt)) + 5
        assert lists["text_offset"] == sorted(lists["text_offset"])
        assert lists["tokens"][-5:] == [" Hot", "bytes:\\x20\\xf0\\x9f", "bytes:\\x8c", "bytes:\\xb6", " done"]
        assert lists["text_offset"][-1] == text.index(" done")
        for token, offset in zip(lists["tokens"], lists["text_offset"], strict=True):
            assert token.startswith("bytes:") or text.startswith(token, offset)


def choice_tokens(application: Application, text: str) -> list[int]:
    token_ids: list[int] = application.post("/tokenize", {"prompt": text}).json()["tokens"]
    return token_ids


@WHOLE_OR_STREAMED
@pytest.mark.parametrize(
    "fields", [{"max_tokens": 0}, {"max_tokens": 1}, {"max_tokens": 1, "top_k": 1, "temperature": 1}, {"n": 2}], ids=str
)
def test_va_01_a_prompt_is_scored_as_transformers_would(
    rand: Application, rand_model: PreTrainedModel, fields: dict[str, Any], streamed: bool
) -> None:
    texts = ["Your answer: Yes", "é🌶 x", "a"]
    body = {"echo": True, "logprobs": 1, "max_tokens": 0, "temperature": 0, "ignore_eos": True} | fields
    n = fields.get("n", 1)
    for prompts in (texts, [list(text.encode()) for text in texts], texts[0], list(texts[0].encode())):
        choices = choices_of(rand, COMPLETIONS, body | {"prompt": prompts}, streamed=streamed)
        assert len(choices) == n * (len(texts) if isinstance(prompts[0], str | list) and prompts is not texts[0] else 1)
        for choice in choices:
            assert_scored(choice, texts[choice["index"] // n], body["max_tokens"], rand_model)
    rand.assert_alive()


def assert_scored(choice: dict[str, Any], text: str, num_new: int, model: PreTrainedModel) -> None:
    """One choice that echoes `text`, whose tokens are its bytes, and adds `num_new` of the best tokens."""
    ids = list(text.encode())
    lists = choice["logprobs"]
    for _ in range(num_new):
        ids.append(int(reference_logits(model, ids)[-1].argmax()))
    assert lists["tokens"] == spelled(ids)
    assert choice["text"].startswith(text) and (num_new > 0 or choice["text"] == text)
    assert lists["token_logprobs"][0] is None and lists["top_logprobs"][0] is None
    if len(ids) > 1:
        rows = torch.log_softmax(reference_logits(model, ids)[:-1], -1)
        own = [float(row[token_id]) for row, token_id in zip(rows, ids[1:], strict=True)]
        assert lists["token_logprobs"][1:] == pytest.approx(own, abs=1e-3)
        best = [max(top.values()) for top in lists["top_logprobs"][1:]]
        assert best == pytest.approx(rows.amax(-1).tolist(), abs=1e-3)


def test_va_01_usage_counts_what_was_scored_and_what_was_sampled(rand: Application) -> None:
    for max_tokens in (0, 1):
        body = {"prompt": "Your answer: Yes", "max_tokens": max_tokens, "echo": True, "logprobs": 1}
        usage = rand.complete(body)["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (16, max_tokens)
        asked = stream(rand, COMPLETIONS, body | {"temperature": 0, "stream_options": {"include_usage": True}})
        assert asked.chunks[-1]["usage"]["completion_tokens"] == max_tokens
        assert asked.finish_reasons() == ["length"]


def test_va_01_a_chat_s_prompt_is_scored_the_same(rand: Application, rand_model: PreTrainedModel) -> None:
    messages = [{"role": "user", "content": "Yes"}]
    ids = rand.post("/tokenize", {"messages": messages}).json()["tokens"]
    body = {"messages": messages, "prompt_logprobs": 1, "max_tokens": 1, "temperature": 0}
    first, *scores = strict_json(rand.post(CHAT, body))["prompt_logprobs"]
    rows = torch.log_softmax(reference_logits(rand_model, ids)[:-1], -1)
    own = [float(row[token_id]) for row, token_id in zip(rows, ids[1:], strict=True)]
    assert first is None
    found = [score[str(token_id)]["logprob"] for score, token_id in zip(scores, ids[1:], strict=True)]
    assert found == pytest.approx(own, abs=1e-3)


SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0}, {"temperature": 0.01}, {"temperature": 1}, {"temperature": 2}, {"top_p": 0.0001}, {"top_k": 1},
    {"min_p": 0.9}, {"typical_p": 0.1}, {"logit_bias": {"7": -100}}, {"logit_bias": {"9": 100}},
    {"presence_penalty": 2}, {"frequency_penalty": -2}, {"repetition_penalty": 1.5}, {"allowed_token_ids": [65, 66]},
    {"bad_words": ["a"]}, {"min_tokens": 1}, {"structured_outputs": {"regex": "[a-c]{2}"}}, {"seed": 2**62},
]  # fmt: skip


@WHOLE_OR_STREAMED
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_nu_05_log_probabilities_are_those_of_the_model(
    rand: Application, rand_model: PreTrainedModel, path: str, streamed: bool
) -> None:
    """Whatever the sampling settings are: they change what is drawn, not what the model thinks of it."""
    if path == COMPLETIONS:
        ids, asked = [1, 2, 3, 4, 5], {"prompt": [1, 2, 3, 4, 5], "logprobs": 5}
    else:
        asked = {"messages": [{"role": "user", "content": "abc"}], "logprobs": True, "top_logprobs": 5}
        ids = rand.post("/tokenize", {"messages": asked["messages"]}).json()["tokens"]
    row = torch.log_softmax(reference_logits(rand_model, ids)[-1], -1)
    expected = {(name,): value for name, value in zip(spelled(list(range(258))), row.tolist(), strict=True)}
    best = sorted(expected.values(), reverse=True)[:5]
    for settings in SETTINGS:
        body = asked | {"max_tokens": 1, "ignore_eos": True, "temperature": 1} | settings
        (choice,) = choices_of(rand, path, body, streamed=streamed)
        own, top = first_entry(choice["logprobs"])
        for name, value in [own, *top]:
            assert value == pytest.approx(expected[(name,)], abs=1e-4), settings
        assert [value for _, value in top] == pytest.approx(best, abs=1e-4), settings


def first_entry(logprobs: dict[str, Any]) -> tuple[tuple[str, float], list[tuple[str, float]]]:
    """The token and its alternatives, best first, with values; of either endpoint, spelled as by completions."""
    if "tokens" in logprobs:
        top = sorted(logprobs["top_logprobs"][0].items(), key=lambda item: -item[1])
        return (logprobs["tokens"][0], logprobs["token_logprobs"][0]), top[:5]
    entry = logprobs["content"][0]
    return _spelled(entry), [_spelled(alternative) for alternative in entry["top_logprobs"]]


def _spelled(entry: dict[str, Any]) -> tuple[str, float]:
    is_text = "\ufffd" not in entry["token"]
    return entry["token"] if is_text else "bytes:" + "".join(f"\\x{b:02x}" for b in entry["bytes"]), entry["logprob"]


def test_nu_05_scores_of_a_prompt_do_not_depend_on_settings_either(rand: Application) -> None:
    body = {"prompt": [1, 2, 3, 4, 5], "max_tokens": 1, "logprobs": 5, "echo": True, "ignore_eos": True}
    greedy = rand.complete(body)["choices"][0]["logprobs"]
    for settings in SETTINGS:
        answer = rand.complete(body | {"temperature": 1} | settings)
        assert tokens_of(answer)[:5] == greedy["tokens"][:5]
        scores = answer["choices"][0]["logprobs"]["top_logprobs"]
        for found, expected in zip(scores, greedy["top_logprobs"], strict=True):
            assert found == (expected and pytest.approx(expected, abs=1e-4)), settings


def test_nu_05_a_token_that_cannot_occur_has_a_finite_value(rand: Application) -> None:
    """Far below everything else, yet JSON has no infinities."""
    body = {"prompt": "abc", "max_tokens": 3, "logprobs": 20, "temperature": 0, "allowed_token_ids": [3]}
    answer = strict_json(rand.post(COMPLETIONS, body))["choices"][0]["logprobs"]
    assert answer["tokens"] == ["\x03"] * 3
    assert all(-10_000 < value <= 0 for value in answer["token_logprobs"])

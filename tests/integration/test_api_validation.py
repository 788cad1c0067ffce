"""What a client may leave out, may not say, and may ask for at the edges: refused by name, harmless to all others."""

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.integration.asking import CHAT, COMPLETIONS, refusal
from tests.integration.conftest import PLAIN, Application
from tests.integration.sse import stream

pytestmark = pytest.mark.integration

PATHS = (CHAT, COMPLETIONS)
VOCAB_SIZE = 258                                           # of rand


def asking(path: str, text: str, **fields: Any) -> dict[str, Any]:
    """A greedy request whose prompt ends in `text`."""
    prompt = {"prompt": f"x {text}"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": text}]}
    return prompt | {"temperature": 0, "max_tokens": 4} | fields


def said(application: Application, path: str, body: dict[str, Any]) -> list[tuple[str, str]]:
    """Text and finish reason of every choice, of a whole answer or of a stream."""
    if body.get("stream"):
        streamed = stream(application, path, body)
        assert (streamed.num_done, streamed.error) == (1, None)
        indices = sorted({choice["index"] for choice in streamed.choices})
        return [(streamed.text(index), *streamed.finish_reasons(index)) for index in indices]
    response = application.post(path, body)
    assert response.status_code == 200, response.text
    choices = response.json()["choices"]
    texts = [choice["text"] if path == COMPLETIONS else choice["message"]["content"] for choice in choices]
    return [(text, choice["finish_reason"]) for text, choice in zip(texts, choices, strict=True)]


ODD_PROMPTS: list[Any] = [
    "", [""], [], [[]], [-1], [VOCAB_SIZE], [[1, 2], [VOCAB_SIZE]], [[1], []], ["a", ""], [2**31], [[2**63]], [10**40],
    None, True, 5, {}, [True], [1.5], ["a", 1], [["a"]], [None],
]  # fmt: skip


def test_va_02_odd_prompts_are_refused_and_disturb_nobody(rand: Application) -> None:
    undisturbed = {"prompt": [5, 6, 7], "max_tokens": 400, "temperature": 0, "ignore_eos": True}
    expected = rand.complete(undisturbed)["choices"][0]["text"]
    variants: tuple[dict[str, Any], ...] = ({}, {"stream": True}, {"n": 2}, {"echo": True, "max_tokens": 0})
    with ThreadPoolExecutor(4) as pool:
        running = pool.submit(stream, rand, COMPLETIONS, undisturbed)
        bodies = [{"prompt": p, "max_tokens": 2, "temperature": 0} | fields for p in ODD_PROMPTS for fields in variants]
        for body, response in zip(bodies, pool.map(lambda body: rand.post(COMPLETIONS, body), bodies), strict=True):
            assert str(refusal(response)["param"]).startswith("prompt"), (body, response.text)
        assert running.result().text() == expected
    rand.assert_alive()


@pytest.mark.parametrize("token_ids", [[VOCAB_SIZE], [-1], []])
def test_va_02_embeddings_of_odd_prompts_are_refused(rand: Application, token_ids: list[int]) -> None:
    """By a model that has no embeddings; those that have: test_api_embeddings.py."""
    refusal(rand.post("/v1/embeddings", {"input": token_ids}))
    rand.assert_alive()


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_va_02_the_token_of_id_0_is_one_like_others(rand: Application, streamed: bool) -> None:
    body: dict[str, Any] = {"max_tokens": 2, "temperature": 0, "ignore_eos": True}
    assert rand.complete({"prompt": [0]} | body)["usage"]["prompt_tokens"] == 1
    assert len(said(rand, COMPLETIONS, {"prompt": [0], "stream": streamed} | body)) == 1
    assert len(said(rand, COMPLETIONS, {"prompt": [[72], [0, 0]], "stream": streamed} | body)) == 2


def context_of(application: Application) -> int:
    return int(application.post("/tokenize", {"prompt": "x"}).json()["max_model_len"])


def assert_told(error: dict[str, Any], context: int, num_prompt_tokens: int, max_tokens: int) -> None:
    assert error["code"] == "context_length_exceeded"
    assert {context, num_prompt_tokens, max_tokens} <= set(map(int, re.findall(r"\d+", error["message"])))


def test_va_04_beyond_the_context_the_numbers_are_told(script: Application) -> None:
    context = context_of(script)
    asked = [(context - 1, 2), (context, 1), (20 * context, 1), (8, context - 3), (8, 2**40)]
    for length, max_tokens in asked:
        for fields in ({}, {"stream": True}, {"n": 2}, {"echo": True}):
            ids = [ord("L")] * length
            for prompt in (ids, [[1, 2], ids]):
                body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0} | fields
                assert_told(refusal(script.post(COMPLETIONS, body)), context, length, max_tokens)
    script.assert_alive()


@pytest.mark.parametrize("num_prompt_tokens", [pytest.param(8, marks=pytest.mark.exhaustive), -100, -1])
def test_va_04_up_to_the_context_there_is_an_answer(script: Application, num_prompt_tokens: int) -> None:
    context = context_of(script)
    prompt = [ord("L")] * (num_prompt_tokens % context)
    num_tokens = context - len(prompt)
    body = {"prompt": prompt, "max_tokens": num_tokens, "temperature": 0}
    for streamed in (False, True):
        assert said(script, COMPLETIONS, body | {"stream": streamed}) == [(" la" * num_tokens, "length")]
    script.assert_alive()


def test_va_04_a_chat_without_max_tokens_ends_with_the_context(script: Application) -> None:
    context = context_of(script)

    def body(num_tokens: int, **fields: Any) -> dict[str, Any]:
        """A conversation of so many tokens: a character more is a token more."""
        message = {"role": "user", "content": "L"}
        count = script.post("/tokenize", {"messages": [message]}).json()["count"]
        return {"messages": [message | {"content": "x" * (num_tokens - count) + "L"}], "temperature": 0} | fields

    for fields in ({}, {"stream": True}, {"n": 2}, {"max_tokens": None, "max_completion_tokens": None}):
        assert set(said(script, CHAT, body(context - 5, **fields))) == {(" la" * 5, "length")}
    for length, fields in ((context, {}), (context + 1, {}), (context - 5, {"max_tokens": 6})):
        for streamed in (False, True):
            error = refusal(script.post(CHAT, body(length, stream=streamed, **fields)))
            assert_told(error, context, length, fields.get("max_tokens", 1))
    script.assert_alive()


NULLABLE = (
    "temperature", "top_p", "n", "max_tokens", "stop", "seed", "stream", "stream_options", "logit_bias", "logprobs",
    "presence_penalty", "frequency_penalty", "user", "model",
)  # fmt: skip
NULLABLE_OF = {
    CHAT: (
        *NULLABLE, "top_logprobs", "response_format", "tools", "tool_choice", "parallel_tool_calls",
        "max_completion_tokens", "functions", "function_call", "metadata", "modalities", "reasoning_effort", "store",
        "service_tier", "prediction", "audio", "web_search_options", "verbosity", "prompt_cache_key",
    ),
    COMPLETIONS: (*NULLABLE, "suffix", "echo", "best_of"),
}  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_va_05_null_is_the_same_as_left_out(script: Application, path: str) -> None:
    given = {key: value for key, value in asking(path, "V").items() if key in ("messages", "prompt")}
    nulls = dict.fromkeys(NULLABLE_OF[path])
    assert said(script, path, given | nulls) == said(script, path, given) == [(" UNO DUE TRE", "stop")]
    assert said(script, path, given | nulls | {"stream": True}) == [(" UNO DUE TRE", "stop")]


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", PATHS)
def test_va_05_each_null_is_the_same_as_left_out(script: Application, path: str) -> None:
    given = {key: value for key, value in asking(path, "V").items() if key in ("messages", "prompt")}
    for field in NULLABLE_OF[path]:
        one = {"temperature": 0, field: None}              # if temperature itself: the chain leaves no choice
        assert said(script, path, given | one) == [(" UNO DUE TRE", "stop")], field
        if field not in ("stream", "stream_options"):
            assert said(script, path, given | one | {"stream": True}) == [(" UNO DUE TRE", "stop")], field


def test_va_05_messages_as_clients_send_them_back_hold_nulls(script: Application) -> None:
    answer = {"role": "assistant", "content": "yes?", "refusal": None, "tool_calls": None, "function_call": None}
    user = {"role": "user", "content": "V", "name": None}
    body = {"messages": [user, answer | {"audio": None, "annotations": []}, user], "temperature": 0}
    assert said(script, CHAT, body) == [(" UNO DUE TRE", "stop")]


@pytest.mark.parametrize("limits", [{"max_tokens": None}, {"max_tokens": 50}, {"max_tokens": 1}], ids=str)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_va_05_max_completion_tokens_is_heeded(script: Application, limits: dict[str, Any], streamed: bool) -> None:
    body = asking(CHAT, "L", max_completion_tokens=3, stream=streamed, n=2) | limits
    assert said(script, CHAT, body) == [(" la la la", "length")] * 2


BODIES: dict[str, dict[str, Any]] = {
    CHAT: asking(CHAT, "V"), COMPLETIONS: asking(COMPLETIONS, "V"),
    "/v1/embeddings": {"input": "x"}, "/v1/score": {"text_1": "x", "text_2": "y"},
    "/v1/rerank": {"query": "x", "documents": ["y"]}, "/tokenize": {"prompt": "x"}, "/detokenize": {"tokens": [65]},
}  # fmt: skip


@pytest.mark.parametrize("path", BODIES)
def test_va_09_an_unknown_model_is_404(script: Application, path: str) -> None:
    variants: list[dict[str, Any]] = [{}, *({"stream": value} for value in (True, False) if path in PATHS)]
    for fields in variants:
        for model in ("no-such-model", "script ", "SCRIPT", "a/b"):
            error = refusal(script.post(path, BODIES[path] | {"model": model} | fields), 404)
            assert (error["code"], error["param"]) == ("model_not_found", "model")
    for model in (5, ["script"], {"id": "script"}, True):
        assert refusal(script.post(path, BODIES[path] | {"model": model}))["param"] == "model"


@pytest.mark.parametrize("path", BODIES)
def test_va_09_no_model_is_the_only_one(script: Application, path: str) -> None:
    for named in ({}, {"model": None}, {"model": ""}, {"model": "script"}):
        response = script.post(path, BODIES[path] | named)
        if path in ("/v1/embeddings", "/v1/score", "/v1/rerank"):
            assert refusal(response)["param"] == "model"   # it is there, and generates text
        else:
            assert response.status_code == 200, response.text
        if path in PATHS:
            assert said(script, path, BODIES[path] | named | {"stream": True})


def test_va_09_models_are_listed(script: Application) -> None:
    (listed,) = httpx.get(f"{script.url}/v1/models", **PLAIN).json()["data"]
    assert listed["id"] == "script"
    assert httpx.get(f"{script.url}/v1/models/script", **PLAIN).json() == listed
    for name in ("no-such-model", "a/b", "%2e%2e", "script/"):
        assert refusal(httpx.get(f"{script.url}/v1/models/{name}", **PLAIN), 404)["code"] == "model_not_found"
    script.assert_alive()


REFUSED: list[tuple[str, Any]] = [
    ("seed", 2**64), ("seed", 2**63), ("seed", -(2**63) - 1), ("seed", 1.5), ("seed", "1"), ("seed", 10**400),
    ("temperature", -0.1), ("temperature", 2.1), ("temperature", "hot"), ("temperature", True), ("temperature", [1]),
    ("top_p", -0.1), ("top_p", 0), ("top_p", 1.01), ("typical_p", 0), ("min_p", 1.5), ("min_p", -0.1),
    ("presence_penalty", 2.1), ("frequency_penalty", -2.1), ("repetition_penalty", 0), ("repetition_penalty", -1),
    ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", 2.5), ("max_tokens", True), ("max_tokens", "4"),
    ("top_k", -5), ("top_k", 2**31), ("top_k", 1.5), ("n", 0), ("n", -1), ("n", 10**6), ("min_tokens", 5),
    ("min_tokens", -1), ("stop", ""), ("stop", [""]), ("stop", ["a", ""]), ("stop", [5]), ("stop", 5),
    ("stop", ["a"] * 1000), ("stop_token_ids", [-1]), ("stop_token_ids", [2**31]), ("bad_words", [""]),
    ("logit_bias", {"7": 100.1}), ("logit_bias", {"x": 1}), ("logit_bias", {"-1": 1}), ("logit_bias", {"9999": 1}),
    ("logit_bias", [1]), ("allowed_token_ids", []), ("allowed_token_ids", [9999]), ("stream", "yes"), ("stream", 1),
    ("stream_options", {"include_usage": "no"}), ("priority", 2**31), ("priority", 0.5), ("user", 5),
    ("truncate_prompt_tokens", 0), ("prompt_logprobs", -1), ("logprobs", -1), ("logprobs", 10**6),
]  # fmt: skip
TAKEN: list[dict[str, Any]] = [
    {"seed": -1}, {"seed": 2**63 - 1}, {"seed": -(2**63)}, {"seed": 0}, {"temperature": 2}, {"temperature": 5e-324},
    {"top_p": 1e-300}, {"top_k": -1}, {"top_k": 2**31 - 1}, {"min_p": 1}, {"presence_penalty": -2}, {"stop": []},
    {"logit_bias": {}}, {"max_tokens": 4}, {"n": 3}, {"stop": ["a" * 256]}, {"temperature": 1, "typical_p": 1e-9},
]  # fmt: skip


def test_va_12_numbers_out_of_range_are_refused_by_name(script: Application) -> None:
    asked = [
        (path, field, asking(path, "L", stream=streamed) | {field: value})
        for path in PATHS for field, value in REFUSED for streamed in (False, True)
    ]  # fmt: skip
    with ThreadPoolExecutor(16) as pool:
        responses = list(pool.map(lambda one: script.post(one[0], one[2]), asked))
    for (path, field, body), response in zip(asked, responses, strict=True):
        param = str(refusal(response)["param"])
        assert param.startswith(field), (path, body, response.text)
    script.assert_alive()


def test_va_12_what_is_taken_is_not_cut_short(script: Application) -> None:
    """Even hot draws follow the chain: nothing else has a chance."""
    asked = [
        (path, asking(path, "L", stream=streamed) | fields)
        for path in PATHS for fields in TAKEN for streamed in (False, True)
    ]  # fmt: skip
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda one: said(script, *one), asked))
    for (path, body), answer in zip(asked, answers, strict=True):
        assert answer == [(" la" * 4, "length")] * body.get("n", 1), (path, body)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "1" * 5000])
@pytest.mark.parametrize("field", ["temperature", "seed", "max_tokens", "presence_penalty", "min_p"])
def test_va_12_what_is_no_finite_number_is_refused(script: Application, field: str, number: str) -> None:
    for path, prompt in ((CHAT, '"messages":[{"role":"user","content":"V"}]'), (COMPLETIONS, '"prompt":"x V"')):
        content = f'{{{prompt},"{field}":{number}}}'
        headers = {"content-type": "application/json"}
        refusal(httpx.post(f"{script.url}{path}", content=content, headers=headers, timeout=20, **PLAIN))
    script.assert_alive()


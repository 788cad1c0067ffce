"""The demo model through the launcher, with the openai client, against transformers: what a newcomer would do."""

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
import torch
from transformers import PreTrainedModel

from engine.model.description import ModelDescription
from serve_app.launcher.ports import free_port
from tests.helpers_demo import demo_description, demo_reference, num_agreeing
from tests.integration.launched import Launched, launched, write_deployment

pytestmark = [pytest.mark.integration, pytest.mark.demo]

NUM_PROMPTS, NUM_TOKENS = 8, 12


@pytest.fixture(scope="module")
def description() -> ModelDescription:
    return demo_description()


@pytest.fixture(scope="module")
def reference(description: ModelDescription) -> PreTrainedModel:
    return demo_reference(description)


@pytest.fixture(scope="module")
def demo(description: ModelDescription, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launched]:
    folder, port = tmp_path_factory.mktemp("demo"), free_port()
    limits: dict[str, Any] = {"num_threads": 2, "max_model_len": 2048, "kv_cache": {"capacity_tokens": 16384}}
    with launched(write_deployment(folder / "demo.yaml", port, model="demo", **limits), port, folder) as server:
        yield server


def client(server: Launched) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)


async def test_a_chat_streams_what_it_answers_whole(demo: Launched) -> None:
    async with client(demo) as api:
        model = (await api.models.list()).data[0].id
        ask: dict[str, Any] = {
            "model": model,
            "messages": [{"role": "user", "content": "Reply with the word hello."}],
            "temperature": 0,
            "max_tokens": 12,
        }
        whole = await api.chat.completions.create(**ask)
        stream = await api.chat.completions.create(**ask, stream=True)
        streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert streamed == whole.choices[0].message.content
    assert "hello" in streamed.lower()


@pytest.mark.exhaustive
async def test_nu_01_concurrent_greedy_completions_equal_transformers(
    demo: Launched, reference: PreTrainedModel
) -> None:
    rng = random.Random(0)
    prompts = [[rng.randrange(1000, 50000) for _ in range(rng.randint(3, 60))] for _ in range(NUM_PROMPTS)]
    together = await asyncio.gather(*(complete(demo, prompt) for prompt in prompts))
    copies = await asyncio.gather(*(complete(demo, prompts[0]) for _ in range(NUM_PROMPTS)))
    alone = [await complete(demo, prompt) for prompt in prompts[:3]]
    assert together[:3] == alone
    assert copies == together[:1] * NUM_PROMPTS
    compared = sum(num_agreeing(reference, *pair) for pair in zip(prompts, together, strict=True))
    assert compared > NUM_PROMPTS * NUM_TOKENS // 2


@pytest.mark.exhaustive
async def test_32_concurrent_completions_are_those_of_one(demo: Launched) -> None:
    async with client(demo) as api:
        model = (await api.models.list()).data[0].id

        async def text() -> str:
            answer = await api.completions.create(model=model, prompt="def add(a, b):", max_tokens=15, temperature=0)
            return answer.choices[0].text

        texts = await asyncio.gather(*(text() for _ in range(32)))
    assert "return a + b" in texts[0]
    assert set(texts) == {texts[0]}


@pytest.mark.exhaustive
async def test_nu_02_the_limit_of_small_temperatures_is_greedy(demo: Launched, reference: PreTrainedModel) -> None:
    body = {"prompt": "San Francisco is a", "max_tokens": NUM_TOKENS, "return_token_ids": True, "ignore_eos": True}
    cold: list[dict[str, Any]] = [{"temperature": t} for t in (0, 1e-3, 1e-4, 1e-5, 1e-6, 1e-9, 1e-12)]
    ignored = [{"top_p": 0.0001}, {"top_k": 1}, {"min_p": 1.0}, {"seed": 3}]
    bodies = [body | fields for fields in [*cold, *({"temperature": 0} | fields for fields in ignored)]]
    together = await asyncio.gather(*(post(demo, "/v1/completions", body) for body in bodies))
    alone = [await post(demo, "/v1/completions", body) for body in bodies]
    prompt: list[int] = (await post(demo, "/tokenize", {"prompt": body["prompt"]}))["tokens"]
    greedy = alone[0]["choices"][0]["token_ids"]
    count = num_agreeing(reference, prompt, greedy, near_tie=1e-2)
    assert count > 0
    for answer in [*together, *alone]:
        assert answer["choices"][0]["token_ids"][:count] == greedy[:count]


@pytest.mark.exhaustive
async def test_va_02_odd_prompts_are_refused_and_id_0_is_not(demo: Launched, description: ModelDescription) -> None:
    """The embedding has more rows than the tokenizer has tokens: those that pad it are no tokens either."""
    vocab_size = description.spec.vocab_size
    for prompt in ("", [""], [], [[]], [-1], [vocab_size], [[1, 2], [vocab_size]], [vocab_size - 1]):
        error = await post(demo, "/v1/completions", {"prompt": prompt, "max_tokens": 2, "temperature": 0}, status=400)
        assert error["error"]["param"].startswith("prompt")
    for prompt, num_choices in (([0], 1), ([[9707], [0, 0]], 2)):
        answer = await post(demo, "/v1/completions", {"prompt": prompt, "max_tokens": 2, "temperature": 0})
        assert len(answer["choices"]) == num_choices
        assert answer["usage"]["prompt_tokens"] == (1 if num_choices == 1 else 3)
    for token_ids in ([vocab_size], [-1]):
        await post(demo, "/v1/embeddings", {"input": token_ids}, status=400)


@pytest.mark.exhaustive
async def test_va_01_a_prompt_is_scored_as_transformers_would(demo: Launched, reference: PreTrainedModel) -> None:
    body = {"prompt": "Your answer: Yes", "echo": True, "logprobs": 1, "max_tokens": 0, "temperature": 0}
    ids = (await post(demo, "/tokenize", {"prompt": body["prompt"]}))["tokens"]
    rows = reference(torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = [float(row[token_id]) for row, token_id in zip(rows, ids[1:], strict=False)]
    for fields in ({}, {"max_tokens": 1}, {"top_k": 1, "temperature": 1}):
        answer = await post(demo, "/v1/completions", body | fields)
        (choice,) = answer["choices"]
        first, *found = choice["logprobs"]["token_logprobs"][: len(ids)]
        assert (first, choice["logprobs"]["top_logprobs"][0]) == (None, None)
        assert found == pytest.approx(expected, abs=1e-3)
        assert choice["text"].startswith(body["prompt"])
        assert answer["usage"]["completion_tokens"] == fields.get("max_tokens", 0)
        assert len(choice["logprobs"]["tokens"]) == answer["usage"]["total_tokens"]


async def post(server: Launched, path: str, body: dict[str, Any], *, status: int = 200) -> dict[str, Any]:
    async with httpx.AsyncClient(timeout=120) as http:
        response = await http.post(f"{server.url}{path}", json=body)
    assert response.status_code == status, response.text
    answer: dict[str, Any] = response.json()
    return answer


async def complete(server: Launched, prompt: list[int]) -> list[int]:
    body = {"prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    answer = await post(server, "/v1/completions", body)
    token_ids: list[int] = answer["choices"][0]["token_ids"]
    return token_ids

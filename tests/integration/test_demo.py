"""The demo model through the launcher, with the openai client, against transformers: what a newcomer would do."""

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

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
    demo: Launched, description: ModelDescription
) -> None:
    rng = random.Random(0)
    prompts = [[rng.randrange(1000, 50000) for _ in range(rng.randint(3, 60))] for _ in range(NUM_PROMPTS)]
    together = await asyncio.gather(*(complete(demo, prompt) for prompt in prompts))
    copies = await asyncio.gather(*(complete(demo, prompts[0]) for _ in range(NUM_PROMPTS)))
    alone = [await complete(demo, prompt) for prompt in prompts[:3]]
    assert together[:3] == alone
    assert copies == together[:1] * NUM_PROMPTS
    reference = demo_reference(description)
    compared = sum(num_agreeing(reference, *pair) for pair in zip(prompts, together, strict=True))
    assert compared > NUM_PROMPTS * NUM_TOKENS // 2


async def test_32_concurrent_completions_are_those_of_one(demo: Launched) -> None:
    async with client(demo) as api:
        model = (await api.models.list()).data[0].id

        async def text() -> str:
            answer = await api.completions.create(model=model, prompt="def add(a, b):", max_tokens=15, temperature=0)
            return answer.choices[0].text

        texts = await asyncio.gather(*(text() for _ in range(32)))
    assert "return a + b" in texts[0]
    assert set(texts) == {texts[0]}


async def complete(server: Launched, prompt: list[int]) -> list[int]:
    body = {"prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    async with httpx.AsyncClient(timeout=120) as http:
        answer = (await http.post(f"{server.url}/v1/completions", json=body)).json()
    token_ids: list[int] = answer["choices"][0]["token_ids"]
    return token_ids

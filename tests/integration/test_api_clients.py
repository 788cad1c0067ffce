"""The openai client against the real server, and what a real server must refuse."""

import asyncio
from typing import Any

import httpx
import openai
import pytest

from tests.integration.conftest import Application

pytestmark = pytest.mark.integration


def client(application: Application) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{application.url}/v1", api_key="none", max_retries=0)


async def test_chat_streams_and_models_are_listed(script: Application) -> None:
    async with client(script) as api:
        assert [model.id async for model in api.models.list()] == ["script"]
        stream = await api.chat.completions.create(
            model="script", messages=[{"role": "user", "content": "P"}], temperature=0, stream=True
        )
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == " Hot 🌶 done"


async def test_32_concurrent_completions_are_all_correct(script: Application) -> None:
    async with client(script) as api:

        async def complete(name: str) -> str:
            answer = await api.completions.create(model="script", prompt=f"x {name}", temperature=0)
            return answer.choices[0].text

        texts = await asyncio.gather(*map(complete, "PV" * 16))
    assert texts == [" Hot 🌶 done", " UNO DUE TRE"] * 16


async def test_errors_are_the_client_s_own_classes(script: Application) -> None:
    async with client(script) as api:
        with pytest.raises(openai.NotFoundError) as unknown:
            await api.completions.create(model="no-such-model", prompt="x")
        assert unknown.value.code == "model_not_found"
        with pytest.raises(openai.BadRequestError) as too_long:
            await api.completions.create(model="script", prompt="x", max_tokens=5000, stream=True)
        assert too_long.value.code == "context_length_exceeded"
        assert too_long.value.param == "max_tokens"


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": [9999]}, {"prompt": [[1, 2], [9999]]}, {"prompt": [-1]}, {"prompt": ""}, {"prompt": []},
        {"prompt": "x", "logit_bias": {"9999": 1}}, {"prompt": "x", "temperature": -1},
    ],
)  # fmt: skip
def test_bad_requests_leave_the_server_unharmed(script: Application, body: dict[str, Any]) -> None:
    for stream in (False, True):
        response = script.post("/v1/completions", body | {"max_tokens": 2, "stream": stream})
        assert response.status_code == 400
        assert response.json()["error"]["param"] in body
    script.assert_alive()


def test_choices_of_a_seeded_request_differ_and_repeat(rand: Application) -> None:
    body = {"prompt": "abc", "n": 3, "temperature": 1, "seed": 7, "max_tokens": 16, "ignore_eos": True, "logprobs": 0}
    first, second = (
        [choice["logprobs"]["tokens"] for choice in rand.complete(body)["choices"]] for _ in range(2)
    )
    assert first == second
    assert len({tuple(tokens) for tokens in first}) == 3


def test_a_client_cannot_set_serve_s_deadline(script: Application) -> None:
    body = {"prompt": "x L", "max_tokens": 500, "temperature": 0}
    headers = {"x-request-timeout-seconds": "0.001"}
    response = httpx.post(f"{script.url}/v1/completions", json=body, headers=headers, timeout=60)
    assert response.status_code == 200
    assert response.json()["usage"]["completion_tokens"] == 500

import base64
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.serve_app.fake_encoder import FakeEncoder
from tests.serve_app.fake_engine import FakeEngine
from tests.serve_app.harness import serving


async def test_whole_answer(tiny_model: Path) -> None:
    async with serving(FakeEncoder(), tiny_model) as client:
        response = await client.post("/v1/embeddings", json={"model": "tiny", "input": ["ab", "c"], "user": "u"})
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    assert response.json() == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": [195.0, 2.0, 1.0]},
            {"object": "embedding", "index": 1, "embedding": [99.0, 1.0, 1.0]},
        ],
        "model": "tiny",
        "usage": {"prompt_tokens": 3, "total_tokens": 3},
    }


@pytest.mark.parametrize(
    ("input_", "token_ids"),
    [("ab", [(97, 98)]), (["a", "b"], [(97,), (98,)]), ([0, 5], [(0, 5)]), ([[1, 2], [0]], [(1, 2), (0,)])],
)
async def test_input_forms(tiny_model: Path, input_: object, token_ids: list[tuple[int, ...]]) -> None:
    engine = FakeEncoder()
    async with serving(engine, tiny_model) as client:
        data = (await client.post("/v1/embeddings", json={"input": input_})).json()["data"]
    assert [request.prompt_token_ids for request in engine.requests] == token_ids
    assert [entry["index"] for entry in data] == list(range(len(token_ids)))


async def test_base64_holds_the_same_numbers(tiny_model: Path) -> None:
    async with serving(FakeEncoder(lambda request: [0.1, -2.5e-8, 3.0]), tiny_model) as client:
        plain, packed = [
            (await client.post("/v1/embeddings", json={"input": "x", "encoding_format": encoding_format})).json()
            for encoding_format in ("float", "base64")
        ]
    numbers = struct.unpack("<3f", base64.b64decode(packed["data"][0]["embedding"]))
    assert list(numbers) == plain["data"][0]["embedding"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": "x"}), ("/v1/score", {"text_1": "x", "text_2": "y"}),
        ("/v1/rerank", {"query": "x", "documents": ["y"]}),
    ],
)  # fmt: skip
async def test_a_user_is_a_tenant(tiny_model: Path, path: str, body: dict[str, Any]) -> None:
    engine = FakeEncoder()
    async with serving(engine, tiny_model) as client:
        assert (await client.post(path, json=body | {"user": "ada"})).status_code == 200
    assert {request.tenant for request in engine.requests} == {"ada"}


async def test_dimensions_reach_the_engine(tiny_model: Path) -> None:
    async with serving(FakeEncoder(), tiny_model) as client:
        response = await client.post("/v1/embeddings", json={"input": "ab", "dimensions": 2})
    assert response.json()["data"][0]["embedding"] == [195.0, 2.0]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"), ({"input": ""}, "input"), ({"input": []}, "input"), ({"input": ["a", ""]}, "input"),
        ({"input": [[]]}, "input"), ({"input": [-1]}, "input"), ({"input": [256]}, "input"),
        ({"input": ["a", [1]], "encoding_format": "hex"}, "encoding_format"), ({"input": {"a": 1}}, "input"),
        ({"input": [["a"]]}, "input"), ({"input": None}, "input"), ({"input": "x", "dimensions": 0}, "dimensions"),
        ({"input": "x", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "x", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": "x", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"input": "x", "truncate_prompt_tokens": 17}, "truncate_prompt_tokens"),
        ({"input": "x", "normalize": True}, "normalize"), ({"input": "x", "stream": True}, "stream"),
    ],
)  # fmt: skip
async def test_bad_requests_are_refused_by_name(tiny_model: Path, body: dict[str, Any], param: str) -> None:
    async with serving(FakeEncoder(), tiny_model) as client:
        response = await client.post("/v1/embeddings", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_a_text_that_is_too_long_is_named_with_both_numbers(tiny_model: Path) -> None:
    async with serving(FakeEncoder(), tiny_model) as client:
        response = await client.post("/v1/embeddings", json={"input": ["a", "b" * 17]})
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, "input", "context_length_exceeded")
    assert error["message"].startswith("input[1] has 17 tokens; the model takes at most 16")


@pytest.mark.parametrize(("truncate", "length"), [(-1, 16), (5, 5), (16, 16)])
@pytest.mark.parametrize("text", ["abcdefghijklmnopqrstuvwxyz", list(range(97, 123))])
async def test_longer_texts_lose_their_ends_if_asked(
    tiny_model: Path, text: object, truncate: int, length: int
) -> None:
    engine = FakeEncoder()
    async with serving(engine, tiny_model) as client:
        answer = await client.post("/v1/embeddings", json={"input": text, "truncate_prompt_tokens": truncate})
    assert engine.requests[0].prompt_token_ids == tuple(range(97, 97 + length))
    assert answer.json()["usage"]["prompt_tokens"] == length


async def test_the_number_of_texts_is_limited(tiny_model: Path) -> None:
    async with serving(FakeEncoder(), tiny_model, limits={"max_prompts": 2}) as client:
        response = await client.post("/v1/embeddings", json={"input": ["a", "b", "c"]})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "limit_exceeded"


async def test_an_unknown_model_is_404(tiny_model: Path) -> None:
    async with serving(FakeEncoder(), tiny_model) as client:
        response = await client.post("/v1/embeddings", json={"model": "other", "input": "x"})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


GENERATION = {
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
}
ENCODING = {
    "/v1/embeddings": {"input": "x"},
    "/v1/score": {"text_1": "x", "text_2": "y"},
    "/v1/rerank": {"query": "x", "documents": ["y"]},
}


@pytest.mark.parametrize(
    ("engine", "bodies", "does"),
    [
        (FakeEncoder(), GENERATION, "encodes texts"),
        (FakeEncoder(task="score"), {**GENERATION, "/v1/embeddings": {"input": "x"}}, "scores pairs of texts"),
        (FakeEngine(), ENCODING, "generates text"),
    ],
)
async def test_what_a_model_cannot_do_is_refused_before_it_is_asked(
    tiny_model: Path, engine: FakeEngine, bodies: dict[str, Any], does: str
) -> None:
    async with serving(engine, tiny_model) as client:
        for path, body in bodies.items():
            response = await client.post(path, json=body)
            assert response.status_code == 400, path
            assert response.json()["error"]["code"] == "unsupported_task"
            assert does in response.json()["error"]["message"]
    assert not engine.requests

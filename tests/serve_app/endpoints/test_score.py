import math
from pathlib import Path
from typing import Any

import pytest

from engine.api import EmbeddingRequest
from tests.serve_app.fake_encoder import FakeEncoder
from tests.serve_app.harness import serving


def letters(request: EmbeddingRequest) -> list[float]:
    """How often a, b and c occur."""
    return [float(request.prompt_token_ids.count(ord(letter))) for letter in "abc"]


def cross_score(request: EmbeddingRequest) -> list[float]:
    """For a pair: its tokens, over 8."""
    return [len(request.prompt_token_ids) / 8]


async def test_a_cross_encoder_reads_pairs(tiny_model: Path) -> None:
    engine = FakeEncoder(cross_score, task="score")
    async with serving(engine, tiny_model) as client:
        response = await client.post("/v1/score", json={"model": "tiny", "text_1": "ab", "text_2": ["abc", "a"]})
    body = response.json()
    assert [request.prompt_token_ids for request in engine.requests] == [(97, 98, 97, 98, 99), (97, 98, 97)]
    assert [request.token_type_ids for request in engine.requests] == [(0,) * 5, (0,) * 3]
    assert body["data"] == [
        {"index": 0, "object": "score", "score": 0.625}, {"index": 1, "object": "score", "score": 0.375},
    ]  # fmt: skip
    assert body["usage"] == {"prompt_tokens": 8, "total_tokens": 8}
    assert (body["object"], body["model"], body["id"][:6]) == ("list", "tiny", "score-")


async def test_an_encoder_of_texts_compares_vectors_and_encodes_each_text_once(tiny_model: Path) -> None:
    engine = FakeEncoder(letters)
    async with serving(engine, tiny_model) as client:
        response = await client.post("/v1/score", json={"text_1": "a", "text_2": ["ab", "a", "c", "x"]})
    assert len(engine.requests) == 4
    assert [entry["score"] for entry in response.json()["data"]] == pytest.approx([math.sqrt(0.5), 1, 0, 0])
    assert response.json()["usage"]["prompt_tokens"] == 5


async def test_as_many_with_as_many(tiny_model: Path) -> None:
    async with serving(FakeEncoder(letters), tiny_model) as client:
        response = await client.post("/v1/score", json={"text_1": ["a", "b"], "text_2": ["a", "a"]})
    assert [entry["score"] for entry in response.json()["data"]] == [1, 0]


async def test_pairs_are_cut_where_they_are_longest(tiny_model: Path) -> None:
    engine = FakeEncoder(cross_score, task="score")
    ask = {"text_1": "ab", "text_2": "c" * 20, "truncate_prompt_tokens": -1}
    async with serving(engine, tiny_model) as client:
        assert (await client.post("/v1/score", json=ask)).status_code == 200
    assert engine.requests[0].prompt_token_ids == (97, 98, *[99] * 14)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text_1": "a"}, "text_2"), ({"text_1": [], "text_2": "a"}, "text_1"),
        ({"text_1": "a", "text_2": []}, "text_2"),
        ({"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"), ({"text_1": "a", "text_2": [1]}, "text_2[0]"),
        ({"text_1": ["a", "b"], "text_2": "a"}, "text_1"), ({"text_1": "a", "text_2": "b" * 17}, "text_2"),
        ({"text_1": "a", "text_2": "b", "dimensions": 2}, "dimensions"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("task", ["score", "embed"])
async def test_bad_requests_are_refused_by_name(
    tiny_model: Path, body: dict[str, Any], param: str, task: Any
) -> None:
    async with serving(FakeEncoder(letters, task=task), tiny_model) as client:
        response = await client.post("/v1/score", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param

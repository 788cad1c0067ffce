from pathlib import Path
from typing import Any

import pytest

from tests.serve_app.endpoints.test_score import letters
from tests.serve_app.fake_encoder import FakeEncoder
from tests.serve_app.harness import serving

ASK: dict[str, Any] = {"model": "tiny", "query": "ab", "documents": ["c", {"text": "ab"}, "a", "b"]}


async def ranked(model: Path, **fields: Any) -> Any:
    async with serving(FakeEncoder(letters), model) as client:
        response = await client.post("/v1/rerank", json={**ASK, **fields})
    assert response.status_code == 200, response.text
    return response.json()


async def test_documents_come_best_first_and_equals_as_they_were_sent(tiny_model: Path) -> None:
    body = await ranked(tiny_model)
    assert [result["index"] for result in body["results"]] == [1, 2, 3, 0]
    assert [result["relevance_score"] for result in body["results"]] == pytest.approx([1, 0.5**0.5, 0.5**0.5, 0])
    assert [result["document"] for result in body["results"]] == [{"text": text} for text in ("ab", "a", "b", "c")]
    assert (body["object"], body["model"], body["id"][:7]) == ("list", "tiny", "rerank-")
    assert body["usage"] == {"prompt_tokens": 5, "total_tokens": 5}      # "ab" is query and document: encoded once


@pytest.mark.parametrize(("top_n", "count"), [(1, 1), (3, 3), (0, 4), (9, 4)])
async def test_only_the_best_if_asked(tiny_model: Path, top_n: int, count: int) -> None:
    body = await ranked(tiny_model, top_n=top_n)
    assert [result["index"] for result in body["results"]] == [1, 2, 3, 0][:count]


async def test_documents_are_left_out_if_asked(tiny_model: Path) -> None:
    body = await ranked(tiny_model, return_documents=False)
    assert [sorted(result) for result in body["results"]] == [["index", "relevance_score"]] * 4


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"query": ""}, "query"), ({"documents": []}, "documents"), ({"top_n": -1}, "top_n"),
        ({"documents": [{"title": "x"}]}, "documents[0]"), ({"rank_fields": ["x"]}, "rank_fields"),
        ({"documents": ["a", "b" * 17]}, "documents"), ({"query": "b" * 17}, "query"),
    ],
)  # fmt: skip
async def test_bad_requests_are_refused_by_name(tiny_model: Path, fields: dict[str, Any], param: str) -> None:
    async with serving(FakeEncoder(letters), tiny_model) as client:
        response = await client.post("/v1/rerank", json={**ASK, **fields})
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(param)


async def test_the_number_of_documents_is_limited(tiny_model: Path) -> None:
    async with serving(FakeEncoder(letters), tiny_model, limits={"max_prompts": 3}) as client:
        response = await client.post("/v1/rerank", json=ASK)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "documents")

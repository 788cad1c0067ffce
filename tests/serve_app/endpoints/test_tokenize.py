from pathlib import Path

import pytest

from tests.serve_app.fake_engine import MAX_MODEL_LEN, FakeEngine
from tests.serve_app.harness import serving

MESSAGES = [{"role": "user", "content": "hi"}]


async def post(model: Path, path: str, body: dict) -> tuple[int, dict]:
    async with serving(FakeEngine(), model) as client:
        response = await client.post(path, json=body)
    return response.status_code, response.json()


async def test_a_text_and_back(tiny_model: Path) -> None:
    status, answer = await post(tiny_model, "/tokenize", {"prompt": "hé", "return_token_strs": True})
    assert status == 200
    assert answer["tokens"] == list("hé".encode())
    assert (answer["count"], answer["max_model_len"], answer["token_strs"][0]) == (3, MAX_MODEL_LEN, "h")
    assert await post(tiny_model, "/detokenize", {"tokens": answer["tokens"]}) == (200, {"prompt": "hé"})


async def test_a_conversation_is_what_chat_makes_of_it(tiny_model: Path) -> None:
    engine = FakeEngine()
    async with serving(engine, tiny_model) as client:
        answer = (await client.post("/tokenize", json={"messages": MESSAGES})).json()
        await client.post("/v1/chat/completions", json={"messages": MESSAGES})
    assert tuple(answer["tokens"]) == engine.requests[0].prompt_token_ids
    assert answer["token_strs"] is None


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": MESSAGES}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": 7}, "prompt"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
    ],
)
async def test_bad_bodies_are_refused_by_name(tiny_model: Path, path: str, body: dict, param: str) -> None:
    status, answer = await post(tiny_model, path, body)
    assert (status, answer["error"]["param"]) == (400, param)


async def test_another_model_is_404(tiny_model: Path) -> None:
    for path, body in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})):
        assert (await post(tiny_model, path, body | {"model": "other"}))[0] == 404

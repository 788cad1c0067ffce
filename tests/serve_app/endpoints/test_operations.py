"""/health, /metrics, /version, /v1/models and what no endpoint serves."""

from importlib import metadata
from pathlib import Path

import pytest

from engine.api import EngineDeadError
from tests.serve_app.fake_engine import FakeEngine
from tests.serve_app.harness import serving


async def test_health_follows_the_engine(tiny_model: Path) -> None:
    engine = FakeEngine()
    async with serving(engine, tiny_model) as client:
        fleet = client.app.state.service.fleet  # type: ignore[attr-defined]
        await fleet.poll()
        assert (await client.get("/health")).status_code == 200
        engine.death = EngineDeadError("out of order")
        await fleet.poll()
        assert (await client.get("/health")).status_code == 503


async def test_models(tiny_model: Path) -> None:
    async with serving(FakeEngine(), tiny_model) as client:
        listed = (await client.get("/v1/models")).json()
        one = await client.get("/v1/models/tiny")
        unknown = await client.get("/v1/models/no-such-model")
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["tiny"]
    assert one.json() == listed["data"][0]
    assert unknown.status_code == 404
    assert unknown.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True])
async def test_unknown_model_is_404_and_none_is_the_only_one(tiny_model: Path, path: str, stream: bool) -> None:
    body = {"prompt": "x"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "x"}]}
    body |= {"stream": stream}
    async with serving(FakeEngine(), tiny_model) as client:
        unknown = await client.post(path, json=body | {"model": "no-such-model"})
        assert unknown.status_code == 404
        assert unknown.json()["error"]["code"] == "model_not_found"
        for model in ({}, {"model": None}, {"model": ""}, {"model": "tiny"}):
            assert (await client.post(path, json=body | model)).status_code == 200


async def test_metrics_label_every_replica(tiny_model: Path) -> None:
    async with serving(FakeEngine(), tiny_model) as client:
        await client.app.state.service.fleet.poll()  # type: ignore[attr-defined]
        text = (await client.get("/metrics")).text
    assert 'conveyor_num_requests_running{model="tiny",replica="local"} 0.0' in text


async def test_version(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", {"conveyor": "1.2.3"}.get)
    async with serving(FakeEngine(), tiny_model) as client:
        assert (await client.get("/version")).json() == {"version": "1.2.3"}


async def test_what_is_not_there_is_told_in_the_openai_shape(tiny_model: Path) -> None:
    async with serving(FakeEngine(), tiny_model) as client:
        unknown = await client.get("/v1/nothing")
        method = await client.get("/v1/completions")
    assert unknown.status_code == 404
    assert "/v1/nothing" in unknown.json()["error"]["message"]
    assert method.status_code == 405
    assert method.headers["allow"] == "POST"
    assert set(method.json()["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1]", b"null", b'"x"', b'{"prompt":"\\ud800"}', b"\xff", b'{"prompt":' + b"[" * 10_000]
)
async def test_bodies_that_are_no_json_object(tiny_model: Path, body: bytes) -> None:
    async with serving(FakeEngine(), tiny_model) as client:
        response = await client.post("/v1/completions", content=body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"

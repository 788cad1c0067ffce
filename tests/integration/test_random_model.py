"""A server of random weights, started as a user starts it: no checkpoint, no tokenizer file."""

from pathlib import Path

import httpx
import pytest

from serve_app.launcher.ports import free_port
from tests.integration.launched import launched, write_deployment

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]


def test_random_weights_are_served_over_http(tmp_path: Path) -> None:
    port = free_port()
    deployment = write_deployment(tmp_path / "deployment.yaml", port, model="random:tiny")
    with launched(deployment, port, tmp_path) as server:
        assert [model["id"] for model in httpx.get(f"{server.url}/v1/models").json()["data"]] == ["random:tiny"]
        body = {"model": "random:tiny", "prompt": "Hello", "max_tokens": 8, "temperature": 0}
        answers = [httpx.post(f"{server.url}/v1/completions", json=body, timeout=30).json() for _ in range(2)]
        assert answers[0]["usage"] == {"prompt_tokens": 5, "completion_tokens": 8, "total_tokens": 13} | {
            key: value for key, value in answers[0]["usage"].items() if key.endswith("details")
        }
        assert answers[0]["choices"][0]["finish_reason"] == "length"
        assert answers[0]["choices"][0]["text"] == answers[1]["choices"][0]["text"] != ""

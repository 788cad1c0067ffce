"""OP-07: a full queue is told as such, in HTTP, whichever limit it was; what was accepted is answered in full."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from serve_app.launcher.ports import free_port
from tests.integration.asking import CHAT, COMPLETIONS, is_idle, refusal, settles
from tests.integration.conftest import PLAIN, Application
from tests.integration.launched import launched, write_deployment

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

NUM_REQUESTS, NUM_TOKENS = 10, 1500
ENGINE_LIMITS: dict[str, Any] = {"max_num_waiting": 2, "scheduler": {"policy": "chunked", "max_num_seqs": 1}}
SERVE_LIMITS: dict[str, Any] = {"name": "LLMServer", "max_ongoing_requests": 1, "max_queued_requests": 2}


@pytest.mark.parametrize(("args", "deployments"), [(ENGINE_LIMITS, []), ({}, [SERVE_LIMITS])], ids=["engine", "serve"])
def test_op_07_a_full_queue_is_a_status_and_not_a_fault(
    models: dict[str, Path], tmp_path: Path, args: dict[str, Any], deployments: list[dict[str, Any]]
) -> None:
    port = free_port()
    path = write_deployment(tmp_path / "full.yaml", port, model=str(models["script"]), **args)
    described = yaml.safe_load(path.read_text())
    described["applications"][0]["deployments"] = deployments
    path.write_text(yaml.safe_dump(described))
    with launched(path, port, tmp_path) as server:
        application = Application("script", server.url)
        begin = threading.Barrier(NUM_REQUESTS)

        def ask(number: int) -> httpx.Response:
            """Half of them stream; of both endpoints."""
            prompt = {"messages": [{"role": "user", "content": "L"}]} if number % 4 < 2 else {"prompt": "x L"}
            url = f"{server.url}{CHAT if number % 4 < 2 else COMPLETIONS}"
            body = prompt | {"max_tokens": NUM_TOKENS, "temperature": 0, "stream": number % 2 == 0}
            begin.wait()
            return httpx.post(url, json=body, timeout=60, **PLAIN)

        with ThreadPoolExecutor(NUM_REQUESTS) as pool:
            responses = list(pool.map(ask, range(NUM_REQUESTS)))
        statuses = [response.status_code for response in responses]
        assert set(statuses) == {200, 503}
        for number, response in enumerate(responses):
            if response.status_code == 503:
                assert refusal(response, 503)["code"] == "queue_full"
                assert int(response.headers["retry-after"]) > 0
            else:
                assert response.text.count(" la") == NUM_TOKENS
                assert number % 2 or response.text.rstrip().endswith("data: [DONE]")
        assert settles(lambda: is_idle(application), within_s=5)
        application.assert_alive()

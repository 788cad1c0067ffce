from collections.abc import AsyncGenerator
from pathlib import Path

import httpx
import pytest
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from engine.api import GenerationRequest
from serve_app.config import AppConfig
from serve_app.ingress import build_asgi
from serve_app.parcel import Outputs
from tests.serve_app.fake_engine import FakeEngine
from tests.serve_app.harness import LocalReplicas, start_server

SERVE_S_OWN = [
    (BackPressureError(3, 2), "queue_full"),
    (DeploymentUnavailableError(DeploymentID("LLMServer")), "service_unavailable"),
]


class FailingReplicas(LocalReplicas):
    """One that answers for itself, but takes no requests."""

    error: RayServeException

    async def generate(self, requests: tuple[GenerationRequest, ...]) -> AsyncGenerator[Outputs, None]:
        raise self.error
        yield ()


async def answer_in_plain_text(http: Request, error: Exception) -> PlainTextResponse:
    return PlainTextResponse("dropped", 503)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("error", "code"), SERVE_S_OWN, ids=["full", "unavailable"])
async def test_errors_of_serve_are_answered_in_our_way_though_serve_adds_handlers(
    tiny_model: Path, error: RayServeException, code: str, stream: bool
) -> None:
    replicas = FailingReplicas(await start_server(FakeEngine()))
    replicas.error = error
    app = build_asgi(AppConfig(model=str(tiny_model)), replicas)
    app.add_exception_handler(type(error), answer_in_plain_text)           # as Serve does in a replica
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url="http://x") as client:
        response = await client.post("/v1/completions", json={"prompt": "x", "stream": stream})
    assert response.status_code == 503
    assert response.json()["error"]["code"] == code
    assert response.headers["retry-after"] == "1"

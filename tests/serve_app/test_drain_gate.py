import asyncio

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from serve_app.drain_gate import DrainGate, PassGate


def client(gate: DrainGate, release: asyncio.Event) -> httpx.AsyncClient:
    async def answer(request):
        await release.wait()
        return PlainTextResponse("done")

    routes = [Route(path, answer) for path in ("/v1/models", "/health", "/metrics")]
    app = Starlette(routes=routes, middleware=[Middleware(PassGate, gate=gate)])
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server")


async def test_running_requests_finish_and_new_ones_are_refused():
    gate, release = DrainGate(), asyncio.Event()
    async with client(gate, release) as http:
        running = asyncio.create_task(http.get("/v1/models"))
        while not gate.num_running:
            await asyncio.sleep(0)
        gate.is_draining = True
        refused = await http.get("/v1/models")
        assert (refused.status_code, refused.json()["error"]["type"]) == (503, "server_error")
        assert "retry-after" in refused.headers
        assert gate.num_running == 1
        release.set()
        assert (await running).text == "done"
    assert gate.num_running == 0


async def test_health_turns_unhealthy_and_metrics_stay():
    gate, release = DrainGate(is_draining=True), asyncio.Event()
    release.set()
    async with client(gate, release) as http:
        assert (await http.get("/health")).status_code == 503
        assert (await http.get("/metrics")).status_code == 200


async def test_a_request_that_fails_is_no_longer_running():
    async def fail(scope, receive, send):
        raise RuntimeError

    gate = DrainGate()
    with pytest.raises(RuntimeError):
        await PassGate(fail, gate)({"type": "http", "path": "/"}, None, None)
    assert gate.num_running == 0

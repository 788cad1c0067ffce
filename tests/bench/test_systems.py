import pytest

from bench.http_client import HttpClient
from bench.metrics import Objective
from bench.replay import RequestFailed
from bench.systems import EngineSystem, HttpSystem, measure, warm_up
from bench.workloads import SETTINGS, build_workload
from engine.api import ContextTooLong, EngineConfig, EngineStats, FinishReason, RequestOutput
from tests.bench.fake_server import server_of

OBJECTIVE = Objective(10.0, 10.0)
BURST = build_workload(SETTINGS["cpu"]["burst"], range(100), seed=0)
CHAT = build_workload(SETTINGS["cpu"]["chat"], range(100), seed=0)


@pytest.mark.parametrize("workload", [BURST, CHAT])
async def test_a_server_over_http_serves_the_whole_workload(workload):
    async with server_of() as url, HttpSystem.connect(HttpClient(url)) as system:
        measurement = await measure(system, workload, OBJECTIVE, repeat=2)
        assert system.description == {"url": url.rstrip("/"), "version": {"version": "0.0"}}
    assert measurement.summary.num_failed == 0
    assert measurement.summary.num_output_tokens == workload.num_output_tokens
    assert measurement.server.num_preemptions is None
    assert (measurement.system, measurement.repeat, measurement.peak_pss_bytes) == ("http", 2, None)


async def test_the_servers_own_metrics_are_taken_along():
    page = "conveyor_num_preemptions_total 4\nconveyor_kv_blocks_used 1\nconveyor_kv_blocks_total 2\n"
    async with server_of(metrics=page) as url, HttpSystem.connect(HttpClient(url)) as system:
        server = (await measure(system, BURST, OBJECTIVE)).server
    assert (server.num_preemptions, server.kv_cache_usage_max) == (0.0, 0.5)


async def test_a_warm_up_shares_no_prompt_with_the_workload_and_must_succeed():
    bodies = []
    async with server_of(bodies=bodies) as url, HttpSystem.connect(HttpClient(url)) as system:
        await warm_up(system, BURST)
    sent = {tuple(body["prompt"]) for body, _ in bodies}
    assert len(sent) == 2
    assert sent.isdisjoint(request.prompt_token_ids for request in BURST.requests)
    async with server_of(status=503) as url, HttpSystem.connect(HttpClient(url)) as system:
        with pytest.raises(RequestFailed, match="http failed at the warm-up: HTTP 503"):
            await warm_up(system, BURST)


class FakeEngine:
    """Answers a request in two outputs; refuses request 2 and fails request 3."""

    async def start(self):
        self.is_running = True

    async def shutdown(self):
        self.is_running = False

    def stats(self):
        return EngineStats(num_preemptions=1)

    async def generate(self, request):
        index = int(request.request_id.removeprefix("bench-")) - 1
        total = request.sampling.max_tokens
        assert request.sampling.ignore_eos
        assert request.sampling.is_greedy
        if index == 2:
            raise ContextTooLong("too long")
        yield RequestOutput(request.request_id, (1,) * (total - 1), num_output_tokens=total - 1)
        reason, error = (FinishReason.ERROR, "broken") if index == 3 else (FinishReason.LENGTH, None)
        yield RequestOutput(request.request_id, (2,), finish_reason=reason, num_output_tokens=total, error=error)


async def test_the_engine_in_process_serves_the_whole_workload(monkeypatch):
    engine = FakeEngine()
    monkeypatch.setattr("bench.systems.create_engine", lambda config: engine)
    async with EngineSystem.start(EngineConfig(model="demo")) as system:
        assert engine.is_running
        measurement = await measure(system, BURST, OBJECTIVE)
    assert not engine.is_running
    errors = {record.index: record.error for record in measurement.records if record.error}
    assert errors == {2: "ContextTooLong: too long", 3: "broken"}
    assert measurement.server.num_preemptions == 0
    assert measurement.peak_pss_bytes is not None

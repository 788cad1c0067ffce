import json
import math

import pytest

from bench.replay import RequestFailed
from bench.serving_costs import __main__ as serving_costs
from bench.serving_costs.__main__ import costs_of, kv_written_share, timed_start, under_load
from bench.serving_costs.costs import Start
from bench.serving_costs.in_process import InProcess, run_in_process
from bench.serving_costs.workloads import SharedPrefix, Streams
from bench.workloads import WorkloadRequest, build_workload
from tests.bench.fake_server import server_of

METRICS = "conveyor_kv_blocks_used 1\nconveyor_kv_blocks_cached 2\nconveyor_kv_blocks_total 4\n"
STREAMS = [build_workload(Streams(3, 8, 4), range(100), seed) for seed in range(2)]
PREFIXES = build_workload(SharedPrefix(num_pairs=2, prefix_len=20, rest_len=3), range(10_000), seed=5)


class FakeStarted:
    age_s = 12.5

    def __init__(self, url, process):
        self.url, self.process = url, process

    def wait_for_text(self, text):
        assert text == "\nready "
        return 11.0


def test_every_second_prompt_shares_its_prefix_with_the_one_before_and_nothing_else():
    prompts = [request.prompt_token_ids for request in PREFIXES.requests]
    assert [len(prompt) for prompt in prompts] == [23] * 4
    assert prompts[0][:20] == prompts[1][:20] != prompts[2][:20] == prompts[3][:20]
    assert len({prompt[20:] for prompt in prompts}) == 4
    assert len(PREFIXES.chains) == 1                   # one after the other


def test_streams_all_begin_at_once_and_are_equally_long():
    assert [(len(r.prompt_token_ids), r.output_len, r.arrival_s) for r in STREAMS[0].requests] == [(8, 4, 0.0)] * 3
    assert len(STREAMS[0].chains) == 3


async def test_a_start_ends_with_the_first_token():
    async with server_of() as url:
        start = await timed_start(FakeStarted(url, None), 9.0, WorkloadRequest(0, (1, 2), 1))
    assert start == Start(empty_s=9.0, ready_s=11.0, first_token_s=12.5)
    assert start.beyond_empty_s == 3.5


async def test_under_load_first_and_second_prompts_are_told_apart(monkeypatch):
    monkeypatch.setattr(serving_costs, "tree_pss_bytes", lambda pid: 1000 * pid)
    process = type("Process", (), {"pid": 3})
    bodies = []
    async with server_of(metrics=METRICS, bodies=bodies) as url:
        load = await under_load(FakeStarted(url, process), PREFIXES, STREAMS)
    assert len(load.missed_ttft_s) == len(load.found_ttft_s) == 2
    assert len(load.output_tokens_per_s) == 2
    assert (load.written_share, load.pss_bytes) == (0.75, 3000)
    sent = [body["prompt"] for body, _ in bodies]
    assert sent[:4] == [list(request.prompt_token_ids) for request in PREFIXES.requests]
    assert len(sent) == 4 + 2 + 6                      # pairs, a warm-up of two, all streams


async def test_a_request_that_fails_is_no_figure():
    async with server_of(status=503, metrics=METRICS) as url:
        with pytest.raises(RequestFailed, match="4 prompts with a shared prefix failed: HTTP 503"):
            await under_load(FakeStarted(url, None), PREFIXES, STREAMS)


def test_written_blocks_are_those_in_use_and_those_that_keep_a_prefix():
    assert kv_written_share(METRICS) == 0.75


def costs(**changes):
    load = serving_costs.UnderLoad(**({
        "missed_ttft_s": (4.0, 5.0, 6.0), "found_ttft_s": (0.4, 0.5, 0.9), "prefix_cache_hit_rate": 0.48,
        "output_tokens_per_s": (47.5, 57.0), "written_share": 0.25, "pss_bytes": 4_600_000_000,
    } | changes))  # fmt: skip
    plan = {"weights_bytes": 1_000_000_000, "kv_bytes": 2_000_000_000}
    starts = [Start(20.0, 26.0, 27.0), Start(20.0, 28.0, 29.0)]
    return costs_of("int8", starts, load, InProcess(plan, (50.0,)), InProcess(plan, (60.0,)))


def test_goals_are_those_of_the_issue():
    start, pool, written, ttft, streams = costs().goals()
    assert (start.value, start.bound, start.is_reached) == (8.0, 8.0, True)
    assert pool.value == pytest.approx(1.6) and pool.bound == 1.7 and pool.is_reached
    assert written.value == pytest.approx(3.1) and not written.is_reached
    assert (ttft.value, ttft.bound, ttft.is_reached) == (10.0, 10.0, True)
    assert streams.value == pytest.approx(0.95) and streams.bound == 0.95
    assert not costs(output_tokens_per_s=(47.0, 56.0)).goals()[-1].is_reached


def test_costs_are_ready_for_json_and_print():
    found = costs()
    assert json.loads(json.dumps(found.to_json()))["stream_ratios"] == [0.95, 0.95]
    assert "PSS 4.60, weights 1.00, KV pool 2.00, KV written 0.50" in str(found)


def test_the_engine_in_process_is_planned_and_measured_in_a_process_of_its_own():
    config = {"model": "random:tiny", "dtype": "float32", "device": "cpu", "kv_cache": {"capacity_tokens": 512}}
    found = run_in_process(config, STREAMS[:1])
    assert found.plan["kv_capacity_tokens"] == 512
    assert len(found.output_tokens_per_s) == 1 and 0 < found.output_tokens_per_s[0] < math.inf


async def test_a_run_takes_everything_in_turn(monkeypatch, tmp_path, capsys):
    """The order: half of the streams in process, an empty application and ours in turn, the other half."""
    events = []

    class Server(FakeStarted):
        def __enter__(self):
            return self

        def __exit__(self, *exception):
            events.append("ended")

    def in_process(config, workloads):
        events.append(("in process", [workload.seed for workload in workloads]))
        return InProcess({"weights_bytes": 1, "kv_bytes": 4}, (10.0,) * len(workloads))

    async def first(server, empty_s, request):
        events.append("ours")
        return Start(empty_s, 2.0, 3.0)

    async def load(server, prefixes, streams):
        events.append(("load", [workload.seed for workload in streams]))
        seen = {request.prompt_token_ids[:4] for request in prefixes.requests}
        assert seen.isdisjoint(r.prompt_token_ids[:4] for workload in streams for r in workload.requests)
        return serving_costs.UnderLoad((2.0,), (0.1,), 0.5, (9.0,) * len(streams), 0.5, 7)

    monkeypatch.setattr(serving_costs, "load_vocabulary", lambda model: list(range(1000)))
    monkeypatch.setattr(serving_costs, "run_in_process", in_process)
    monkeypatch.setattr(serving_costs, "empty_start_s", lambda: events.append("empty") or 1.0)
    monkeypatch.setattr(serving_costs, "our_server", lambda folder, arguments: Server("", None))
    monkeypatch.setattr(serving_costs, "timed_start", first)
    monkeypatch.setattr(serving_costs, "under_load", load)
    arguments = ["--dtypes", "int8", "--starts", "2", "--streams", "4", "--results", str(tmp_path)]
    await serving_costs.run(serving_costs.parser().parse_args(arguments))
    assert events == [
        ("in process", [0]), "empty", "ours", "ended", "empty", "ours", ("load", [0, 1]), "ended", ("in process", [1]),
    ]  # fmt: skip
    [path] = tmp_path.iterdir()
    [server] = json.loads(path.read_text())["servers"]
    assert server["dtype"] == "int8" and len(server["starts"]) == 2 and len(server["goals"]) == 5
    assert "int8: streams over HTTP" in capsys.readouterr().out

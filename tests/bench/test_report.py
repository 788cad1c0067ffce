import json

import pytest

from bench.metrics import Objective, RequestRecord, summarize
from bench.report import comparison_text, ratios, result_document, run_text, save
from bench.server_stats import ServerFigures
from bench.systems import Measurement
from bench.workloads import SETTINGS, build_workload

OBJECTIVE = Objective(2.0, 0.25)


def measurement(system, seconds, *, repeat=0, name="burst", error=None):
    """One request of 100 output tokens that took so many seconds."""
    workload = build_workload(SETTINGS["cpu"][name], range(100), seed=repeat)
    records = (RequestRecord(0, 10, 100, 0.0, (seconds / 2, seconds), seconds, error),)
    return Measurement(system, workload, repeat, summarize(records, OBJECTIVE), ServerFigures(), 2**30, records)


INTERLEAVED = [
    measurement("http", 1.0),
    measurement("peer", 4.0),
    measurement("http", 2.0, repeat=1),
    measurement("peer", 4.0, repeat=1),
    measurement("http", 1.0, repeat=2),
    measurement("peer", 5.0, repeat=2),
]


def test_a_ratio_pairs_runs_of_the_same_repeat():
    [ratio] = ratios(INTERLEAVED, against="peer")
    assert (ratio.system, ratio.against, ratio.workload) == ("http", "peer", "burst")
    assert ratio.of_repeats == pytest.approx((4.0, 2.0, 5.0))
    assert ratio.median == pytest.approx(4.0)


def test_workloads_have_ratios_of_their_own():
    single = [measurement("http", 1.0, name="single"), measurement("peer", 1.5, name="single")]
    found = ratios(INTERLEAVED + single, against="peer")
    assert [(ratio.workload, ratio.median) for ratio in found] == [("burst", 4.0), ("single", 1.5)]


@pytest.mark.parametrize("failing", ["http", "peer"])
def test_a_run_with_a_failed_request_gives_no_ratio(failing):
    runs = [measurement(system, 1.0, error="cut off" if system == failing else None) for system in ("http", "peer")]
    assert ratios(runs, against="peer") == []


def test_a_comparison_prints_the_ratio_first():
    text = comparison_text(INTERLEAVED, ratios(INTERLEAVED, against="peer"))
    assert text.startswith("4.00x  http / peer, output tokens/s, burst (repeats: 4.00, 2.00, 5.00)")
    assert len(text.splitlines()) == 1 + 2 + len(INTERLEAVED)


def test_what_the_server_does_not_tell_is_not_available():
    lines = dict(line.split(maxsplit=1) for line in run_text(measurement("http", 1.0)).splitlines() if "ms" not in line)
    assert lines["preemptions"] == "n/a"
    assert lines["KV"] == "usage                mean n/a, max n/a"


def test_a_saved_result_carries_all_that_a_figure_needs(tmp_path):
    found = ratios(INTERLEAVED, against="peer")
    document = result_document(INTERLEAVED, {"http": {"url": "u"}, "peer": {"batch_size": 16}}, OBJECTIVE, found)
    path = save(document, folder=tmp_path / "results")
    saved = json.loads(path.read_text())
    assert path.name.endswith("-burst-http-vs-peer.json")
    assert saved["schema"] == "conveyor-bench/1"
    assert {"commit", "machine", "versions", "command", "created", "objective", "systems", "ratios"} <= saved.keys()
    assert {"cpu", "cores", "memory_bytes", "gpu", "load_average"} == saved["machine"].keys()
    assert "python" in saved["versions"]
    assert saved["systems"]["peer"] == {"batch_size": 16}
    assert saved["ratios"][0]["median"] == pytest.approx(4.0)
    one = saved["measurements"][2]
    assert (one["system"], one["repeat"]) == ("http", 1)
    assert one["workload"]["seed"] == 1
    assert one["workload"]["parameters"]["cap"] == 128
    assert one["workload"]["fingerprint"] == INTERLEAVED[2].workload.fingerprint
    assert one["summary"]["output_tokens_per_s"] == pytest.approx(50.0)
    again = [RequestRecord.from_json(record) for record in one["records"]]
    assert summarize(again, OBJECTIVE) == INTERLEAVED[2].summary

import json

import pytest

from bench.metrics import Objective, RequestRecord, summarize
from bench.report import result_document, run_text, save
from bench.server_stats import ServerFigures
from bench.systems import Measurement
from bench.workloads import SETTINGS, build_workload

OBJECTIVE = Objective(2.0, 0.25)


def measurement(system, seconds, *, repeat=0, name="burst", error=None):
    """One request of 100 output tokens that took so many seconds."""
    workload = build_workload(SETTINGS["cpu"][name], range(100), seed=repeat)
    records = (RequestRecord(0, 10, 100, 0.0, (seconds / 2, seconds), seconds, error),)
    return Measurement(system, workload, repeat, summarize(records, OBJECTIVE), ServerFigures(), 2**30, records)


RUNS = [measurement("http", 1.0), measurement("peer", 4.0), measurement("http", 2.0, repeat=1)]


def test_what_the_server_does_not_tell_is_not_available():
    lines = dict(line.split(maxsplit=1) for line in run_text(measurement("http", 1.0)).splitlines() if "ms" not in line)
    assert lines["preemptions"] == "n/a"
    assert lines["KV"] == "usage                mean n/a, max n/a"


def test_a_saved_result_carries_all_that_a_figure_needs(tmp_path):
    document = result_document(RUNS, {"http": {"url": "u"}, "peer": {"batch_size": 16}}, OBJECTIVE)
    path = save(document, folder=tmp_path / "results")
    saved = json.loads(path.read_text())
    assert path.name.endswith("-burst-http-vs-peer.json")
    assert saved["schema"] == "conveyor-bench/1"
    assert {"commit", "machine", "versions", "command", "created", "objective", "systems"} <= saved.keys()
    assert {"cpu", "cores", "memory_bytes", "gpu", "load_average"} == saved["machine"].keys()
    assert "python" in saved["versions"]
    assert saved["systems"]["peer"] == {"batch_size": 16}
    one = saved["measurements"][2]
    assert (one["system"], one["repeat"]) == ("http", 1)
    assert one["workload"]["seed"] == 1
    assert one["workload"]["parameters"]["cap"] == 128
    assert one["workload"]["fingerprint"] == RUNS[2].workload.fingerprint
    assert one["summary"]["output_tokens_per_s"] == pytest.approx(50.0)
    again = [RequestRecord.from_json(record) for record in one["records"]]
    assert summarize(again, OBJECTIVE) == RUNS[2].summary

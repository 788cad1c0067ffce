import itertools
import json

import pytest

from bench import step_loop
from bench.null_engine import build_null_core
from bench.step_loop import BatchRow, QueueRow, goals, requests, timed_steps


def run(folder, *arguments):
    step_loop.run(step_loop.parser().parse_args([*arguments, "--results", str(folder)]))
    [path] = folder.iterdir()
    return json.loads(path.read_text())


def test_the_null_engine_runs_the_whole_step_loop():
    core = build_null_core(4)
    for generation in itertools.islice(requests(40, itertools.repeat(3), seed=0), 4):
        core.add_request(generation)
    outputs = [core.step() for _ in range(3)]
    core.check_integrity()
    assert [[len(output.token_ids) for output in step] for step in outputs] == [[1] * 4] * 3
    assert [output.text for output in outputs[0]] == [" ", "!", '"', "#"]
    assert all(output.is_finished for output in outputs[-1])
    assert not core.has_work


def test_parts_add_up_to_the_step():
    core = build_null_core(2)
    for generation in itertools.islice(requests(8, itertools.repeat(9), seed=0), 2):
        core.add_request(generation)
    for step in timed_steps(core, 5):
        assert step.parts_s.keys() == set(step_loop.PARTS)
        assert sum(step.parts_s.values()) == pytest.approx(step.total_s)
        assert 0 < step.own_s < step.total_s


def test_an_idle_step_is_no_measurement():
    with pytest.raises(RuntimeError, match="nothing to compute"):
        timed_steps(build_null_core(1), 1)


def test_a_small_run_starts_and_finishes(tmp_path, capsys):
    sizes = ("--batches", "1", "3", "--steps", "4", "--queued", "1010", "1020", "--policies", "orca")
    saved = run(tmp_path, *sizes, "--model", "random:tiny", "--model-batch", "2", "--model-steps", "2")
    assert saved["schema"] == "conveyor-step-loop/1"
    assert [(row["model"], row["batch"]) for row in saved["batches"]] == [
        ("null", 1), ("null", 3), ("random:tiny", 2),
    ]
    assert all(row["own_ms"] > 0 and row["step_ms"] <= row["p99_ms"] <= row["max_ms"] for row in saved["batches"])
    queues = [(row["policy"], row["num_queued"]) for row in saved["queues"]]
    assert queues == [("orca", 1000), ("orca", 1010), ("orca", 1020)]
    assert [row["bytes_per_request"] is None for row in saved["queues"]] == [True, False, False]
    names = [goal["name"] for goal in saved["goals"]]
    assert "the same as a share of a step of random:tiny, 2 sequences" in names
    assert "orca: own time with 1020 queued over 1000" in names
    assert "p99" in capsys.readouterr().out


def test_the_queue_is_as_long_as_the_row_says(monkeypatch):
    args = step_loop.parser().parse_args(["--queued", "1500", "--steps", "3"])
    seen = []
    original = step_loop.timed_steps

    def watched(core, num_steps):
        seen.append((core.stats().num_requests_running, core.stats().num_requests_waiting))
        return original(core, num_steps)

    monkeypatch.setattr(step_loop, "timed_steps", watched)
    step_loop.time_queue("chunked", args)
    (_, first), (running, warm), (_, second), (still_running, still) = seen
    assert (first, second) == (1000, 1500)
    assert running == still_running == 31              # one of the 32 has just ended
    assert 1000 - 2 * 32 <= warm < 1000 and 1500 - 2 * 32 <= still < 1500


def batch_row(model, batch, own_ms, step_ms):
    return BatchRow(model, batch, own_ms, dict.fromkeys(step_loop.PARTS, 0.1), step_ms, step_ms, step_ms)


def queue_row(num_queued, bytes_per_request, step_ms):
    return QueueRow("chunked", num_queued, bytes_per_request, 1.0, step_ms, step_ms, step_ms)


def test_goals_are_those_of_the_issue():
    batches = [batch_row("null", 32, 0.2, 0.3), batch_row("null", 256, 1.2, 1.5), batch_row("demo", 32, 12.0, 600.0)]
    queues = [queue_row(1000, None, 0.5), queue_row(10**5, 3000.0, 0.5), queue_row(10**6, 3600.0, 0.54)]
    own, share, slower, growth = goals(batches, queues)
    assert (own.value, own.bound, own.is_reached) == (1.2, 1.0, False)
    assert (share.value, share.bound, share.is_reached) == (2.0, 3.0, True)
    assert slower.value == pytest.approx(1.08) and slower.is_reached
    assert growth.value == pytest.approx(1.2) and not growth.is_reached

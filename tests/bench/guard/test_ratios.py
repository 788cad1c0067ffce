import json

import pytest

from bench.guard.ratios import (
    Committed,
    Verdict,
    findings_text,
    judge,
    read_committed,
    second_look,
    write_committed,
)

BASE = Committed(2.0, 0.1, (1.95, 2.0, 2.05))


@pytest.mark.parametrize(
    ("rounds", "verdict"),
    [
        ([2.0, 9.0, 2.1], Verdict.SAME),               # the median counts
        ([2.2], Verdict.SAME),
        ([2.21], Verdict.WORSE),
        ([1.79], Verdict.BETTER),
    ],
)
def test_a_ratio_may_rise_by_its_tolerance(rounds, verdict):
    [finding] = judge({"a": rounds}, {"a": BASE})
    assert finding.verdict is verdict


def test_what_is_measured_on_one_side_only_is_told():
    new, gone = judge({"new": [1.0]}, {"gone": BASE})
    assert (new.name, new.verdict, new.verdict.is_failure) == ("new", Verdict.NEW, False)
    assert (gone.name, gone.verdict, gone.verdict.is_failure) == ("gone", Verdict.GONE, True)
    assert "GONE" in findings_text([new, gone])


def test_worse_once_is_not_worse():
    committed = {"a": BASE, "b": BASE, "c": BASE}
    first = judge({"a": [3.0], "b": [3.0], "c": [2.0]}, committed)
    second = judge({"a": [2.0], "b": [3.1], "c": [3.0]}, committed)
    verdicts = {finding.name: (finding.verdict, finding.measured) for finding in second_look(first, second)}
    assert verdicts == {"a": (Verdict.SAME, 2.0), "b": (Verdict.WORSE, 3.1), "c": (Verdict.SAME, 2.0)}


def test_tolerances_follow_the_spread_of_runs_and_are_never_too_small():
    assert Committed.of_runs([1.0, 1.01, 1.02]).tolerance == pytest.approx(0.1)
    wide = Committed.of_runs([0.9, 1.0, 1.1])
    assert (wide.value, wide.tolerance) == (1.0, pytest.approx(0.4))


def test_what_is_written_is_read_back(tmp_path):
    path = tmp_path / "committed.json"
    assert read_committed(path) == ({}, "")
    runs = [{"a": [1.0, 3.0, 2.0]}, {"a": [2.5]}, {"a": [2.2]}]
    written = write_committed(path, runs)
    assert written["a"].runs == (2.0, 2.5, 2.2) and written["a"].value == 2.2
    ratios, cpu = read_committed(path)
    assert ratios == written
    assert cpu == json.loads(path.read_text())["machine"]["cpu"]


def test_another_kind_of_file_is_refused(tmp_path):
    path = tmp_path / "other.json"
    path.write_text('{"schema": "something/1"}')
    with pytest.raises(ValueError, match="is not a file of conveyor-guard/1"):
        read_committed(path)

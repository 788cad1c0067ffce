import json

import pytest

from bench.guard import __main__ as guard
from bench.guard.ratios import COMMITTED, read_committed
from bench.guard.run import measure
from bench.guard.trials import TINY, Trials


@pytest.fixture(scope="module")
def found():
    return measure(tiny=True, rounds=2, seed=0)


def test_every_round_measures_every_ratio(found):
    assert len(found) == 16
    assert all(len(ratios) == 2 and min(ratios) > 0 for ratios in found.values())
    assert max(found["decode int8: own Python / step"]) < 1


def test_a_cached_prefix_is_found():
    """The one ratio that a mistake in its own set-up would leave near 1."""
    trials = Trials(TINY, seed=1)
    core = trials._cores["bfloat16"]
    list(trials.round())
    before = core.stats().prefix_cache_hits
    trials._prefix(core)
    assert core.stats().prefix_cache_hits - before == TINY.prefix_len
    for core in (*trials._cores.values(), trials._null):
        assert not core.has_work
        core.check_integrity()
    trials.close()


@pytest.fixture
def run(monkeypatch, tmp_path):
    """The guard's exit status where it measures what it is told."""

    def run(*measured, update=False, path=tmp_path / "committed.json"):
        left = list(measured)
        monkeypatch.setattr(guard, "measure", lambda **sizes: {name: [v] for name, v in left.pop(0).items()})
        arguments = ["--committed", str(path), "--runs", str(len(measured)), *(["--update"] if update else [])]
        status = guard.main(guard.parser().parse_args(arguments))
        assert left == []
        return status

    run({"a": 1.0, "b": 2.0}, {"a": 1.02, "b": 2.0}, update=True)
    return run


def test_no_change_ends_with_0(run, capsys):
    assert run({"a": 1.0, "b": 2.1}) == 0
    assert "got worse" not in capsys.readouterr().out


def test_what_got_worse_twice_is_named_and_ends_with_1(run, capsys):
    assert run({"a": 1.5, "b": 3.0}, {"a": 1.4, "b": 2.0}) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "got worse: a"


def test_a_busy_moment_is_forgiven(run):
    assert run({"a": 1.5, "b": 2.0}, {"a": 1.0, "b": 2.0}) == 0


def test_a_ratio_that_vanished_is_a_failure(run, capsys):
    assert run({"a": 1.0}) == 1
    assert "got worse: b" in capsys.readouterr().out


def test_better_is_told_with_the_remedy(run, capsys):
    assert run({"a": 0.5, "b": 2.0}) == 0
    assert "--update" in capsys.readouterr().out


def test_another_processor_is_told(run, tmp_path, capsys):
    path = tmp_path / "committed.json"
    document = json.loads(path.read_text())
    document["machine"]["cpu"] = "another one"
    path.write_text(json.dumps(document))
    assert run({"a": 1.0, "b": 2.0}) == 0
    assert "is of another one" in capsys.readouterr().out


@pytest.mark.skipif(not COMMITTED.exists(), reason="nothing is committed yet")
def test_what_is_committed_is_what_is_measured(found):
    assert read_committed(COMMITTED)[0].keys() == found.keys()

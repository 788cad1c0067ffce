"""The whole command with processes of a few lines in place of real systems."""

import json
import re
from pathlib import Path

import psutil
import pytest

from bench.peers import __main__ as peers
from bench.peers.packages import PeerFailed
from bench.peers.process import PeerSystem
from engine.api import ResolvedModel
from tests.bench.peers.fakes import CRASHES, peer_process

SINGLE = ("--systems", "vllm_cpu_float32", "--workloads", "single")


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs the command; `commands` are the processes of systems that are not to be well."""
    monkeypatch.setattr("bench.peers.process._END_S", 0.05)
    monkeypatch.setenv("CONVEYOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(peers, "load_vocabulary", lambda model: range(100))
    model = ResolvedModel("folder", Path("/nowhere"), "m")
    monkeypatch.setattr("bench.peers.options.resolve_model", lambda name: model)

    def run(*arguments, commands=None, uninstallable=()):
        def prepare(name, settings, log):
            if name in uninstallable:
                raise PeerFailed("ERROR: no such version")

        def opener(name, settings, log):
            return lambda: PeerSystem.start(name, (commands or {}).get(name, peer_process()), log)

        monkeypatch.setattr(peers, "prepare", prepare)
        monkeypatch.setattr(peers, "opener_of", opener)
        peers.main([*arguments, "--results", str(tmp_path / "results"), "--num-requests", "3", "--caps", "8"])
        [folder] = (tmp_path / "results").iterdir()
        return folder

    return run


def test_a_run_leaves_data_tables_and_a_picture(run, capsys):
    folder = run("--systems", "ours_http_int8", "vllm_cpu_float32", "--repeats", "2")
    printed = capsys.readouterr().out
    assert re.match(r"11 turns of 2 systems, about \d+:\d\d h", printed)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-peers-demo", folder.name)
    assert {path.name for path in folder.iterdir()} == {"results.json", "tables.md", "peers.png"}
    assert (folder / "peers.png").read_bytes().startswith(b"\x89PNG")
    tables = (folder / "tables.md").read_text()
    assert tables.split("## ", 1)[1] in printed
    assert "1.00x (1.00, 1.00)" in tables
    saved = json.loads((folder / "results.json").read_text())
    assert {"commit", "machine", "versions", "command", "created", "goals", "ratios", "systems"} <= saved.keys()
    runs = [(m["system"], m["repeat"], m["workload"]["name"]) for m in saved["measurements"]]
    in_order = [("ours_http_int8", name) for name in ("burst", "single", "poisson", "long_short", "chat")]
    in_order += [("vllm_cpu_float32", "burst"), ("vllm_cpu_float32", "single")]
    assert runs[:7] == [(system, 0, name) for system, name in in_order]
    assert runs[7:] == [(system, 1, name) for system, name in in_order if name in ("burst", "single")]
    prints = {(m["repeat"], m["workload"]["name"], m["workload"]["fingerprint"]) for m in saved["measurements"]}
    assert len(prints) == 7                                   # equal work for both, other work in each repeat
    assert saved["systems"]["vllm_cpu_float32"]["description"]["versions"] == {"fake": "1.0"}
    assert all(m["summary"]["num_failed"] == 0 for m in saved["measurements"])


def test_failures_are_told_and_the_others_go_on(run, capsys):
    folder = run(
        "--systems", "vllm_cpu_float32", "transformers_static", "llama_cpp_q8_0_16", "--repeats", "1",
        "--workloads", "burst",
        commands={"transformers_static": CRASHES}, uninstallable={"vllm_cpu_float32"},
    )  # fmt: skip
    saved = json.loads((folder / "results.json").read_text())
    assert [m["system"] for m in saved["measurements"]] == ["llama_cpp_q8_0_16"]
    reasons = {failure["system"]: failure["reason"] for failure in saved["failures"]}
    assert "no such version" in reasons["vllm_cpu_float32"]
    assert "ValueError: a weight is missing" in reasons["transformers_static"]
    assert "failed: ERROR: no such version" in capsys.readouterr().out


def test_a_folder_of_today_is_not_mixed_with_another_run(run):
    run(*SINGLE, "--repeats", "1")
    with pytest.raises(SystemExit, match="--name"):
        run(*SINGLE, "--repeats", "1")


def test_sigterm_ends_the_peers_too(run, tmp_path):
    pid_file = tmp_path / "pid"
    source = f"import os, signal; open({str(pid_file)!r}, 'w').write(str(os.getpid())); "
    hangs = peer_process(before=source + "os.kill(os.getppid(), signal.SIGTERM); time.sleep(600)")
    with pytest.raises(SystemExit) as stop:
        run(
            "--systems", "transformers_static", "vllm_cpu_float32", "--workloads", "single", "--repeats", "1",
            commands={"vllm_cpu_float32": hangs},
        )  # fmt: skip
    assert stop.value.code == 143
    assert not psutil.pid_exists(int(pid_file.read_text()))
    [folder] = (tmp_path / "results").iterdir()
    measured = json.loads((folder / "results.json").read_text())["measurements"]
    assert [m["system"] for m in measured] == ["transformers_static"]


def test_what_was_measured_before_an_interruption_is_saved(run, monkeypatch, tmp_path):
    real, saved = peers.publish, []

    def publish(found, *arguments):
        text = real(found, *arguments)
        saved.append({m.repeat for m in found.measurements})
        if len(saved) == 2:
            raise KeyboardInterrupt
        return text

    monkeypatch.setattr(peers, "publish", publish)
    with pytest.raises(SystemExit) as stop:
        run(*SINGLE, "--repeats", "3")
    assert stop.value.code == 130
    [folder] = (tmp_path / "results").iterdir()
    assert {m["repeat"] for m in json.loads((folder / "results.json").read_text())["measurements"]} == {0, 1}

import sys
from pathlib import Path

import psutil
import pytest

from bench.peers.packages import Environment, PeerFailed
from bench.peers.process import PeerSystem, kill_tree, module_command, run_once
from tests.bench.peers.fakes import CRASHES, burst, peer_process


@pytest.fixture
def log(tmp_path):
    return tmp_path / "peer.log"


async def test_a_peer_runs_workload_after_workload_whatever_its_libraries_print(log):
    seen = []
    async with PeerSystem.start("fake", peer_process(), log) as peer:
        assert peer.description["dtype"] == "float32"
        assert peer.startup_s > 0
        for seed in range(2):
            workload = burst(8, seed)
            records, figures = await peer.run(workload, seen.append)
            assert [record.index for record in records] == [0, 1, 2]
            assert [record.end_s for record in records] == [request.output_len for request in workload.requests]
            assert figures.num_preemptions == 2
    assert len(seen) == 6
    assert log.read_text() == "a library that chatters\n"


@pytest.mark.parametrize("status", [0, 3])
async def test_a_peer_that_cannot_start_is_an_error(log, status):
    with pytest.raises(PeerFailed, match=rf"no output \(its process ended with status {status}\)"):
        async with PeerSystem.start("fake", [sys.executable, "-c", f"raise SystemExit({status})"], log):
            pass


async def test_a_peer_that_ends_in_a_run_is_an_error_with_its_last_word(log):
    async with PeerSystem.start("fake", CRASHES, log) as peer:
        with pytest.raises(PeerFailed, match=r"ValueError: a weight is missing \(.* status 3\)"):
            await peer.run(burst(8), lambda record: None)


def test_a_command_that_ends_by_itself_has_to_succeed(log):
    run_once([sys.executable, "-c", "print('fine')"], log)
    assert log.read_text() == "fine\n"
    with pytest.raises(PeerFailed, match="RuntimeError: no"):
        run_once([sys.executable, "-c", "raise RuntimeError('no')"], log)


def test_a_peers_packages_come_after_all_others(tmp_path):
    folder = tmp_path / "packages"
    folder.mkdir()
    (folder / "json.py").write_text("raise AssertionError('it shadows the library')")
    (folder / "only_there.py").write_text("import json, sys, bench.workloads\nprint(json.dumps(sys.argv[1:]))")
    run_once(module_command(Environment(Path(sys.executable), folder), "only_there", ["--a", "b"]), tmp_path / "log")
    assert (tmp_path / "log").read_text() == '["--a", "b"]\n'


async def test_a_process_is_killed_with_its_children(log):
    source = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    process = psutil.Popen([sys.executable, "-c", source], stdin=-1)
    while not (children := process.children(recursive=True)):
        assert process.poll() is None
    kill_tree(process.pid)
    assert process.wait(10) != 0
    assert psutil.wait_procs(children, timeout=10)[1] == []

import json
import sys

import pytest

from bench import compare, serving
from bench.peers import __main__ as peers
from tests.bench.fake_server import server_of


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs the command line of a benchmark; returns what it saved."""
    monkeypatch.setattr("bench.options.load_vocabulary", lambda model: range(100))

    async def run(module, *arguments):
        await module.run(module.parser().parse_args([*arguments, "--results", str(tmp_path)]))
        [path] = tmp_path.iterdir()
        return json.loads(path.read_text())

    return run


async def test_a_run_over_http_is_printed_and_saved(run, capsys):
    async with server_of() as url:
        saved = await run(serving, "--url", url, "--workload", "burst", "chat", "--num-requests", "5", "--seed", "3")
    printed = capsys.readouterr().out
    assert "output tokens/s" in printed
    assert "5, of which 0 failed" in printed
    assert [m["workload"]["name"] for m in saved["measurements"]] == ["burst", "chat"]
    assert [m["workload"]["seed"] for m in saved["measurements"]] == [3, 3]
    assert len(saved["measurements"][0]["records"]) == 5


async def test_the_api_key_is_read_from_a_file_and_not_saved(run, tmp_path_factory):
    key_file = tmp_path_factory.mktemp("keys") / "key"
    key_file.write_text("secret-key\n")
    bodies = []
    async with server_of(bodies=bodies) as url:
        saved = await run(serving, "--url", url, "--num-requests", "2", "--api-key-file", str(key_file))
    assert {authorization for _, authorization in bodies} == {"Bearer secret-key"}
    assert "secret-key" not in json.dumps(saved)


async def test_a_comparison_takes_turns_and_gives_both_systems_the_same_work(run, capsys, fake_peer):
    async with server_of() as url:
        saved = await run(compare, "--url", url, "--workload", "burst", "--num-requests", "3", "--repeats", "2")
    runs = saved["measurements"]
    assert [(m["system"], m["repeat"]) for m in runs] == [
        ("http", 0), ("transformers_static", 0), ("http", 1), ("transformers_static", 1),
    ]
    fingerprints = [m["workload"]["fingerprint"] for m in runs]
    assert fingerprints[0] == fingerprints[1] != fingerprints[2] == fingerprints[3]
    assert capsys.readouterr().out.splitlines()[0].split()[1:4] == ["http", "/", "transformers_static,"]
    assert len(saved["ratios"][0]["of_repeats"]) == 2
    assert saved["systems"]["transformers_static"] == {"batch_size": 2}


async def test_a_peer_alone_is_printed_and_saved(run, capsys, fake_peer):
    saved = await run(peers, "transformers_static", "--workload", "single", "--batch-size", "1")
    assert [m["system"] for m in saved["measurements"]] == ["transformers_static"]
    assert saved["measurements"][0]["summary"]["num_failed"] == 0
    assert "3, of which 0 failed" in capsys.readouterr().out


@pytest.fixture
def fake_peer(monkeypatch):
    """A peer whose every token takes a second by its own clock, in place of the real one's process."""
    source = """
from itertools import count

from bench.peers.protocol import serve_workloads, take_stdout
from bench.peers.static_batches import run_static_batches

def generate(requests, num_tokens, on_step):
    for _ in range(num_tokens):
        on_step()

serve_workloads(
    take_stdout(), {"batch_size": 2},
    lambda workload, on_record: run_static_batches(
        workload, generate, on_record, batch_size=2, clock=count().__next__, sleep=lambda seconds: None
    ),
)
"""
    for module in (compare, peers):
        monkeypatch.setattr(module, "peer_command", lambda name, arguments: [sys.executable, "-c", source])
        monkeypatch.setattr(module, "peer_arguments", lambda args: [])

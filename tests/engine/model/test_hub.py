"""Which files a `model` stands for, and how each failure is told."""

import pytest

from engine.errors import ConfigError
from engine.model import demo, hub
from engine.model.hub import ResolvedModel, resolve


def test_a_folder(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert resolve(str(folder)) == ResolvedModel("folder", folder, "my-model")


def test_a_gguf_file(tmp_path):
    path = tmp_path / "my-model.gguf"
    path.touch()
    assert resolve(str(path)) == ResolvedModel("gguf", path, "my-model")


def test_the_demo(tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "cache_directory", lambda: tmp_path)
    monkeypatch.setattr(demo, "fetch", lambda cache: cache / "file")
    assert resolve("demo") == ResolvedModel("gguf", tmp_path / "file", "Qwen2.5-Coder-0.5B-Instruct")


@pytest.mark.parametrize(
    ("model", "cause"),
    [
        ("/no/such/folder", r"no folder /no/such/folder"),
        ("no-such-folder", r"no folder .*no-such-folder.*not a Hugging Face id"),
        ("/no/such/model.gguf", r"no file /no/such/model\.gguf"),
    ],
)
def test_what_is_not_there_is_named_with_its_path(model, cause):
    with pytest.raises(ConfigError, match=rf"model: {model}.*{cause}"):
        resolve(model)


def test_a_folder_without_a_config(tmp_path):
    with pytest.raises(ConfigError, match=r"holds no config\.json"):
        resolve(str(tmp_path))


def test_some_other_file(tmp_path):
    (tmp_path / "weights.bin").touch()
    with pytest.raises(ConfigError, match="neither a folder nor"):
        resolve(str(tmp_path / "weights.bin"))


def test_a_hub_id_is_fetched_without_pickles(tmp_path, monkeypatch):
    asked = {}

    def snapshot_download(model, **options):
        asked.update(options, model=model)
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert resolve("owner/name") == ResolvedModel("folder", tmp_path, "owner/name")
    assert asked["model"] == "owner/name"
    assert not any("bin" in pattern or ".pt" in pattern for pattern in asked["allow_patterns"])


def test_a_hub_that_cannot_be_reached(monkeypatch):
    def snapshot_download(model, **options):
        raise OSError("no route to host")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    with pytest.raises(ConfigError, match=r"owner/name could not be fetched from Hugging Face: no route to host"):
        resolve("owner/name")

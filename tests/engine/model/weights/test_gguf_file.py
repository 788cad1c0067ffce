"""GGUF headers: read as written, and damage told apart from content."""

import struct

import gguf
import numpy as np
import pytest

from engine.errors import ConfigError
from engine.model.weights.gguf_file import GGUFFile


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(77)
    writer.add_string("a.text", "naïve")
    writer.add_array("an.array", [1.5, 2.5])
    writer.add_token_list(["<a>", "b"])
    writer.add_bool("a.flag", True)
    writer.add_tensor("one", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("two", np.arange(5, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_and_tensors_are_read_as_written(path):
    file = GGUFFile(path)
    assert file.metadata["llama.context_length"] == 77
    assert file.metadata["a.text"] == "naïve"
    assert file.metadata["an.array"] == [1.5, 2.5]
    assert file.metadata["tokenizer.ggml.tokens"] == ["<a>", "b"]
    assert file.metadata["a.flag"] is True
    assert {name: tensor.shape for name, tensor in file.tensors.items()} == {"one": (2, 3), "two": (5,)}
    assert file.raw_rows("one").view(np.float32).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert file.raw_rows("two").view(np.float16).tolist() == [[0, 1, 2, 3, 4]]


def test_wrong_magic(path):
    path.write_bytes(b"GGML" + path.read_bytes()[4:])
    with pytest.raises(ConfigError, match="not a GGUF file"):
        GGUFFile(path)


def test_an_unknown_version(path):
    path.write_bytes(b"GGUF" + struct.pack("<I", 9) + path.read_bytes()[8:])
    with pytest.raises(ConfigError, match="GGUF version 9"):
        GGUFFile(path)


@pytest.mark.parametrize("kept", [4, 5, 23, 24, 60, 150, 300])
def test_a_header_cut_short(path, kept):
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ConfigError, match="damaged or cut short"):
        GGUFFile(path)


def test_tensor_data_cut_short_name_the_tensor(path):
    whole = path.read_bytes()
    path.write_bytes(whole[:GGUFFile(path).tensors["two"].offset + 4])
    with pytest.raises(ConfigError, match="tensor two ends at byte"):
        GGUFFile(path)


def test_an_absurd_count_is_damage(path):
    data = bytearray(path.read_bytes())
    data[16:24] = struct.pack("<Q", 2**60)   # pairs
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="damaged or cut short"):
        GGUFFile(path)

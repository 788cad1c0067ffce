import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import processors

from engine.errors import ConfigError, InvalidRequest
from engine.text.tokenizer import load_tokenizer
from tests.engine.text import tiny

GGUF_FIELDS = {
    "general.architecture": "llama", "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": ["a", "b", "ab"], "tokenizer.ggml.merges": ["a b"],
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CONVEYOR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def with_bos() -> "tiny.engine_tokenizer.Tokenizer":
    pipeline = tiny.byte_level()
    pipeline.post_processor = processors.TemplateProcessing(single=["<s>", "$A"], special_tokens=[("<s>", 0)])
    return tiny.wrap(pipeline)


def test_te_01_bos_is_added_once_and_never_doubled():
    tokenizer = with_bos()
    hot = tokenizer.encode(" Hot", add_special_tokens=False)
    assert tokenizer.encode(" Hot") == [0, *hot]
    assert tokenizer.encode("<s> Hot") == [0, *hot]
    assert tokenizer.encode("<s> Hot", add_special_tokens=False) == [0, *hot]
    assert tokenizer.encode("") == [0]


def test_a_lone_surrogate_is_refused():
    with pytest.raises(InvalidRequest, match="not valid Unicode"):
        tiny.wrap(tiny.byte_level()).encode("a\ud800")


def test_special_ids():
    tokenizer = tiny.wrap(tiny.byte_level(), eos_token_ids=(1,))
    assert tokenizer.special_token_ids == {0, 1, 2}
    assert (tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.eos_token_ids) == (0, None, {1})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    pipeline = tiny.byte_level()
    pipeline.enable_truncation(4)
    pipeline.enable_padding()
    pipeline.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>",
              "chat_template": "{{ bos_token }}{{ messages[0].content }}"}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_a_folder_gives_what_transformers_gives(folder):
    from transformers import AutoTokenizer

    tokenizer, reference = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    text = " Hot 🌶 done, done"
    assert tokenizer.decode(tokenizer.encode(text)) == text            # the file's truncation is not ours
    assert tokenizer.encode(text)[:4] == reference.backend_tokenizer.encode(text).ids[:4]
    assert tokenizer.vocab_size == len(reference)
    assert (tokenizer.special_tokens["bos_token"], tokenizer.special_tokens["eos_token"]) == ("<s>", "</s>")
    assert tokenizer.chat_template.render([{"role": "user", "content": "hi"}]) == "<s>hi"


@pytest.mark.parametrize("kind, reader", [
    ("folder", "transformers.AutoTokenizer.from_pretrained"), ("gguf", "engine.text.gguf_tokenizer.GGUFFile"),
])  # fmt: skip
def test_a_second_load_reads_the_converted_copy(kind, reader, request, monkeypatch):
    source = request.getfixturevalue(kind)
    first = load_tokenizer(source)
    monkeypatch.setattr(reader, None)
    second = load_tokenizer(source)
    assert (second.encode("abba"), second.vocab_size) == (first.encode("abba"), first.vocab_size)
    assert (second.special_tokens, second.eos_token_ids) == (first.special_tokens, first.eos_token_ids)
    assert (second.chat_template is None) == (first.chat_template is None)


def test_a_changed_source_is_converted_again(gguf):
    load_tokenizer(gguf)
    tiny.write_gguf(gguf, GGUF_FIELDS | {"tokenizer.ggml.tokens": ["b", "a", "ab"]})
    assert load_tokenizer(gguf).encode("a") == [1]


def test_a_folder_of_another_model_type_is_converted_for_itself(folder, cache):
    load_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": 8}))
    load_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": 16}))
    load_tokenizer(folder)
    assert len(list((cache / "tokenizers").iterdir())) == 2


def test_a_cache_that_cannot_be_written_is_done_without(gguf, cache):
    cache.write_text("a file where the folder should be")
    assert load_tokenizer(gguf).encode("ab") == [2]


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return tiny.write_gguf(tmp_path / "model.gguf", GGUF_FIELDS)


def test_a_model_without_tokenizer_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "nowhere"):
        with pytest.raises(ConfigError, match=f"^model: .*{path.name}"):
            load_tokenizer(path)


def test_nothing_here_imports_torch(gguf):
    load_tokenizer(gguf)
    code = (
        "import sys, engine.text.detokenizer, engine.text.tokenizer\n"
        f"engine.text.tokenizer.load_tokenizer({str(gguf)!r}).encode('ab')\n"
        "assert not {'torch', 'transformers'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

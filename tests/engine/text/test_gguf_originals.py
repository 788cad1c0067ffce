"""LO-08: the tokenizer rebuilt from a GGUF header gives the ids of the original, as transformers builds that."""

from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from engine.model.weights.gguf_file import GGUFFile
from engine.text.gguf_tokenizer import read_gguf_tokenizer
from engine.text.tokenizer import Tokenizer
from tests.engine.text.originals import CHATML, CONTROL, ORIGINALS, TEXTS, original_qwen2
from tests.helpers_demo import demo_path


@pytest.mark.parametrize("name", ORIGINALS)
def test_lo_08_ids_equal_the_original_s(tmp_path: Path, name: str) -> None:
    original = ORIGINALS[name](tmp_path / "m.gguf")
    rebuilt = Tokenizer(read_gguf_tokenizer(tmp_path / "m.gguf"))
    assert_same_ids(rebuilt, original)
    assert max(len(rebuilt.token_bytes(token_id)) for token_id in rebuilt.encode(TEXTS[0])) > 2   # merged at all


def assert_same_ids(rebuilt: Tokenizer, original: PreTrainedTokenizerBase) -> None:
    bos = original.bos_token_id
    for text in TEXTS:
        expected = original(text).input_ids
        if bos is not None and expected[:2] == [bos, bos]:     # ours is never doubled
            expected = expected[1:]
        assert rebuilt.encode(text) == expected, text
        bare = original(text, add_special_tokens=False).input_ids
        assert rebuilt.encode(text, add_special_tokens=False) == bare, text
        assert rebuilt.decode(bare) == original.decode(bare, skip_special_tokens=True), text


@pytest.mark.parametrize("name", ORIGINALS)
def test_lo_08_the_chat_template_renders_the_same_ids(tmp_path: Path, name: str) -> None:
    original = ORIGINALS[name](tmp_path / "m.gguf")
    rebuilt = Tokenizer(read_gguf_tokenizer(tmp_path / "m.gguf"))
    messages = [{"role": "user", "content": "don't  say «½»"}]
    original.chat_template = CHATML if name == "qwen2" else "{{ bos_token }}{{ messages[0].content }}"
    expected = original.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert rebuilt.chat_template is not None
    assert rebuilt.encode(rebuilt.chat_template.render(messages), add_special_tokens=False) == expected
    assert expected.count(original.bos_token_id) == (name != "qwen2")


@pytest.mark.demo
@pytest.mark.exhaustive
def test_lo_08_the_demo_model_has_the_ids_of_its_original() -> None:
    """Of the family's own tokenizer with the same vocabulary."""
    file = GGUFFile(demo_path())
    tokens, types, merges = (file.metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type", "merges"))
    count = next(i for i, token in enumerate(tokens) if token.startswith("[PAD"))
    special = [token for token, kind in zip(tokens[:count], types, strict=False) if kind == CONTROL]
    original = original_qwen2(tokens[:count], merges, special)
    assert_same_ids(Tokenizer(read_gguf_tokenizer(demo_path())), original)

from pathlib import Path
from random import Random
from typing import Any

import pytest

from engine.errors import ConfigError
from engine.text.detokenizer import Detokenizer
from engine.text.gguf_tokenizer import read_gguf_tokenizer
from engine.text.saved_tokenizer import SavedTokenizer
from engine.text.token_bytes import byte_alphabet
from engine.text.tokenizer import Tokenizer
from tests.engine.text import tiny
from tests.helpers_demo import demo_path

BYTES = [character for character, _ in sorted(byte_alphabet().items(), key=lambda item: item[1])]


@pytest.fixture
def build(tmp_path: Path):
    def build(**fields: Any) -> SavedTokenizer:
        """Of a GGUF header with these `tokenizer.ggml.…` fields; names with a dot are whole keys."""
        header = {name if "." in name else f"tokenizer.ggml.{name}": value for name, value in fields.items()}
        return read_gguf_tokenizer(tiny.write_gguf(tmp_path / "model.gguf", header))

    return build


def byte_level_fields(*more_tokens: str, **fields: Any) -> dict[str, Any]:
    """The bytes are ids [0, 256); then come the tokens of `more_tokens`."""
    return {"model": "gpt2", "pre": "gpt-2", "tokens": [*BYTES, *more_tokens], **fields}


def pieces(saved: SavedTokenizer, text: str) -> list[str]:
    return saved.pipeline.encode(text, add_special_tokens=False).tokens


def words(saved: SavedTokenizer, text: str) -> list[str]:
    """How `text` is split before merging."""
    splitter = saved.pipeline.pre_tokenizer
    assert splitter is not None
    return [word.replace("Ġ", " ") for word, _ in splitter.pre_tokenize_str(text)]


@pytest.mark.parametrize("pre, expected", [
    ("gpt-2", ["don", "'t", " 1234", " x"]),
    ("qwen2", ["don", "'t", " ", "1", "2", "3", "4", " x"]),
    ("llama-bpe", ["don", "'t", " ", "123", "4", " x"]),
    ("smollm", ["don", "'t", " ", "1", "2", "3", "4", " x"]),
])  # fmt: skip
def test_text_is_split_as_the_header_names_it(build, pre, expected):
    assert words(build(**byte_level_fields(pre=pre)), "don't 1234 x") == expected


def test_qwen2_composes_characters_first(build):
    e_acute = [BYTES[byte] for byte in "é".encode()]
    assert pieces(build(**byte_level_fields(pre="qwen2")), "e\u0301") == e_acute
    assert pieces(build(**byte_level_fields(pre="gpt-2")), "e\u0301")[0] == "e"


def test_llama3_takes_a_whole_word_that_no_merge_makes(build):
    assert pieces(build(**byte_level_fields("ab", "abc", pre="llama-bpe", merges=["a b"])), "abc") == ["abc"]
    assert pieces(build(**byte_level_fields("ab", "abc", pre="gpt-2", merges=["a b"])), "abc") == ["ab", "c"]


@pytest.mark.parametrize("fields, message", [
    ({"pre": "brand-new"}, "text splitting 'brand-new'"),
    ({"model": "t5"}, "tokenizer.ggml.model 't5'"),
    ({"model": "llama", "pre": "qwen2"}, "SentencePiece does not have"),
])  # fmt: skip
def test_lo_08_what_we_do_not_know_is_refused(build, fields, message):
    with pytest.raises(ConfigError, match=message):
        build(**byte_level_fields() | fields)


@pytest.mark.parametrize("fields", [{"merges": ["a x"]}, {"bos_token_id": 999}])
def test_a_vocabulary_that_contradicts_itself_is_refused(build, fields):
    with pytest.raises(ConfigError, match="contradicts itself"):
        build(**byte_level_fields() | {"tokens": BYTES[:100]} | fields)


def test_lo_08_a_header_that_names_no_splitting_is_refused(build):
    fields = byte_level_fields()
    del fields["pre"]
    with pytest.raises(ConfigError, match="text splitting"):
        build(**fields)


def test_control_tokens_are_special_and_user_defined_ones_stay_whole(build):
    saved = build(**byte_level_fields("<|end|>", "<tool>", token_type=[1] * 256 + [3, 4]))
    assert pieces(saved, "a<|end|><tool>") == ["a", "<|end|>", "<tool>"]
    added = saved.pipeline.get_added_tokens_decoder()
    assert {token_id: token.special for token_id, token in added.items()} == {256: True, 257: False}


def test_rows_that_pad_the_embedding_are_no_tokens(build):
    saved = build(**byte_level_fields("[PAD256]", "[PAD257]", token_type=[1] * 256 + [5, 5]))
    assert Tokenizer(saved).vocab_size == 256


def test_lo_06_end_tokens_are_those_of_text_turn_and_message(build):
    saved = build(**byte_level_fields("<e>", "<t>", "<m>", eos_token_id=256, eot_token_id=257, eom_token_id=258))
    assert saved.eos_token_ids == (256, 257, 258)
    assert saved.special_tokens == {"eos_token": "<e>"}


@pytest.mark.parametrize("fields, expected", [
    ({"pre": "gpt-2"}, ["a"]),
    ({"pre": "llama-bpe"}, ["<s>", "a"]),
    ({"pre": "llama-bpe", "add_bos_token": False}, ["a"]),
    ({"pre": "gpt-2", "add_bos_token": True, "add_eos_token": True}, ["<s>", "a", "</s>"]),
])  # fmt: skip
def test_te_01_bos_and_eos_are_added_as_the_header_says(build, fields, expected):
    saved = build(**byte_level_fields("<s>", "</s>", bos_token_id=256, eos_token_id=257) | fields)
    assert saved.pipeline.encode("a").tokens == expected


def test_chat_templates_by_name(build):
    saved = build(**byte_level_fields(), **{
        "tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": "with tools"
    })
    assert saved.chat_templates == {"default": "plain", "tool_use": "with tools"}


def sentencepiece_fields(tokens: list[str], scores: list[float], **fields: Any) -> dict[str, Any]:
    kinds = [2, 3, 3] + [6] * 256
    return {
        "general.architecture": "llama", "model": "llama",
        "tokens": ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *tokens],
        "scores": [0.0] * 259 + scores, "token_type": kinds + [1] * len(tokens),
        "unknown_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **fields,
    }  # fmt: skip


def test_sentencepiece_merges_the_best_scored_first(build):
    tokens, scores = ["a", "b", "c", "ab", "bc"], [-9.0, -9.0, -9.0, -2.0, -1.0]
    plain = {"add_space_prefix": False}
    assert pieces(build(**sentencepiece_fields(tokens, scores, **plain)), "abc") == ["a", "bc"]
    gemma = {"general.architecture": "gemma3", **plain}
    assert pieces(build(**sentencepiece_fields(tokens, scores, **gemma)), "abc") == ["ab", "c"]


def test_sentencepiece_falls_back_to_bytes(build):
    saved = build(**sentencepiece_fields(["▁", "a"], [-1.0, -2.0]))
    assert pieces(saved, "aé") == ["▁", "a", "<0xC3>", "<0xA9>"]
    assert saved.pipeline.encode("a").tokens == ["<s>", "▁", "a"]


@pytest.mark.parametrize("prefix, tokens, decoded", [(True, ["▁", "a"], "a"), (False, ["a"], "a")])
def test_sentencepiece_prefixes_a_space_unless_told_otherwise(build, prefix, tokens, decoded):
    saved = build(**sentencepiece_fields(["▁", "a"], [-1.0, -2.0], add_space_prefix=prefix))
    assert pieces(saved, "a") == tokens
    assert saved.pipeline.decode(saved.pipeline.encode("a").ids) == decoded


def test_gemma_merges_runs_of_spaces_that_the_file_stores_as_spaces(build):
    fields = sentencepiece_fields(["▁", "  ", "a"], [-1.0, -2.0, -3.0], add_space_prefix=False)
    saved = build(**fields | {"general.architecture": "gemma3"})
    assert pieces(saved, "a  a") == ["a", "▁▁", "a"]
    assert saved.pipeline.decode(saved.pipeline.encode("a  a").ids) == "a  a"


@pytest.fixture(scope="module")
def demo() -> Tokenizer:
    return Tokenizer(read_gguf_tokenizer(demo_path()))


@pytest.mark.demo
def test_lo_08_the_demo_model_has_the_ids_of_the_original(demo):
    assert demo.encode(" Hot 🌶 done") == [8007, 11162, 234, 114, 2814]
    assert demo.encode("<|im_start|>user") == [151644, 872]
    assert demo.encode("e\u0301") == demo.encode("é")
    assert (demo.eos_token_ids, demo.vocab_size, len(demo.encode("Hello"))) == ({151645}, 151665, 1)
    assert demo.token_bytes(222) == b"\x80"
    rendered = demo.chat_template.render([{"role": "user", "content": "hi"}])
    assert rendered.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.demo
def test_the_demo_model_s_text_is_that_of_the_whole_sequence(demo):
    random = Random(0)
    for _ in range(300):
        ids = [random.choice([random.randrange(256), random.randrange(demo.vocab_size)]) for _ in range(12)]
        detokenizer = Detokenizer(demo, ids[:3])
        text = detokenizer.push(ids[3:]).text + detokenizer.finish().text
        assert text == demo.decode(ids)[len(demo.decode(ids[:3])):]

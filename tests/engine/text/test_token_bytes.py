import pytest
from tokenizers import Tokenizer, decoders, models

from engine.text.token_bytes import ByteRule, WholeTexts, byte_alphabet, find_byte_rule
from tests.engine.text import tiny


def pipeline_with(decoder: decoders.Decoder) -> Tokenizer:
    pipeline = Tokenizer(models.BPE({"a": 0}, []))
    pipeline.decoder = decoder
    return pipeline


def test_the_alphabet_has_a_character_for_every_byte():
    assert sorted(byte_alphabet().values()) == list(range(256))
    assert byte_alphabet()["Ġ"] == ord(" ")


@pytest.mark.parametrize("pipeline, rule", [
    (tiny.byte_level(), ByteRule("byte_level")),
    (tiny.sentencepiece(strips_space=False), ByteRule("sentencepiece")),
    (tiny.sentencepiece(strips_space=True), ByteRule("sentencepiece", strips_first_space=True)),
    (tiny.metaspace(), None),
    (pipeline_with(decoders.WordPiece()), None),
    (pipeline_with(decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])), None),
    (Tokenizer(models.BPE({"a": 0}, [])), None),
])  # fmt: skip
def test_the_decoder_tells_the_rule(pipeline, rule):
    assert find_byte_rule(pipeline) == rule


@pytest.mark.parametrize("token, expected", [
    ("<0xF0>", b"\xf0"), ("▁queen", b" queen"), ("日", "日".encode()), ("</s>", b"</s>"), ("<0xZZ>", None),
])  # fmt: skip
def test_sentencepiece_bytes(token, expected):
    pipeline = tiny.sentencepiece()
    if expected is None:                           # spelled like a byte, but none
        pipeline.add_tokens([token])
        expected = token.encode()
    assert tiny.wrap(pipeline).token_bytes(pipeline.token_to_id(token)) == expected


@pytest.mark.parametrize("token, expected", [
    ("ĠHot", b" Hot"), ("<|im_end|>", b"<|im_end|>"), ("<tool▁call>", "<tool▁call>".encode()),
])  # fmt: skip
def test_byte_level_bytes(token, expected):
    pipeline = tiny.byte_level()
    assert tiny.wrap(pipeline).token_bytes(pipeline.token_to_id(token)) == expected


def test_an_id_that_is_no_token_has_no_bytes():
    tokenizer = tiny.wrap(tiny.byte_level())
    assert [tokenizer.token_bytes(token_id) for token_id in (-1, tokenizer.vocab_size, 2**40)] == [b"", b"", b""]


def test_whole_texts_are_those_of_whole_characters_that_are_nothing_special():
    spelled = {0: b"<s>", 1: b" a", 2: "é🌶".encode(), 3: b"\xc3", 4: b"\xa9 b", 5: b"\xed\xa0\x80", 6: b""}
    asked: list[int] = []

    def token_bytes(token_id: int) -> bytes:
        asked.append(token_id)
        return spelled[token_id]

    texts = WholeTexts(token_bytes, frozenset({0}))
    assert [texts[token_id] for token_id in spelled] == [None, " a", "é🌶", None, None, None, ""]
    assert [texts[token_id] for token_id in (1, 3)] == [" a", None]
    assert asked == [1, 2, 3, 4, 5, 6]             # each once

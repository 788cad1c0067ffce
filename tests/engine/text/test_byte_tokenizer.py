"""The stand-in tokenizer of random weights."""

import pytest

from engine.model.shapes import SHAPES
from engine.text.tokenizer import load_tokenizer

VOCAB_SIZE = SHAPES["tiny"]["vocab_size"]


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("random:tiny")


def test_text_is_its_bytes_and_comes_back(tokenizer):
    text = "a  b\n\x00 é 🌶 don't"
    ids = tokenizer.encode(text)
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text


def test_every_id_of_the_vocabulary_has_bytes(tokenizer):
    assert tokenizer.vocab_size == VOCAB_SIZE
    assert [tokenizer.token_bytes(i) for i in range(256)] == [bytes([i]) for i in range(256)]
    assert tokenizer.token_bytes(256) == b" 256"
    assert tokenizer.decode([72, 105, VOCAB_SIZE - 1]) == f"Hi {VOCAB_SIZE - 1}"


def test_no_text_encodes_to_a_number_token(tokenizer):
    assert max(tokenizer.encode(" 256 300")) < 256


def test_nothing_ends_a_generation(tokenizer):
    assert tokenizer.eos_token_ids == frozenset()
    assert tokenizer.special_token_ids == frozenset()


def test_a_chat_renders(tokenizer):
    assert tokenizer.chat_template.render([{"role": "user", "content": "Hi"}]) == "user: Hi\n"

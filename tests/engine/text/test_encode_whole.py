"""Texts and pairs as encoders take them, against transformers."""

from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertTokenizer, PreTrainedTokenizerFast

from engine.errors import InvalidRequest
from engine.text.saved_tokenizer import SavedTokenizer
from engine.text.tokenizer import Tokenizer as OurTokenizer
from engine.text.tokenizer import load_tokenizer

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *"abcdefghij"]
TEXTS = ("", "a", "a b c d e f g h", "j i")
LIMITS = (3, 4, 5, 6, 7, 8, 12)


def pipeline(kind: str) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    if kind == "bert":
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    else:
        tokenizer.post_processor = processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


@pytest.fixture(params=["bert", "roberta"])
def tokenizers(request: pytest.FixtureRequest) -> tuple[OurTokenizer, PreTrainedTokenizerFast]:
    ours = OurTokenizer(SavedTokenizer(pipeline(request.param), {}, (), {}, token_types=True))
    theirs = PreTrainedTokenizerFast(tokenizer_object=pipeline(request.param), model_input_names=["input_ids"])
    return ours, theirs


def test_single_texts_cut_and_whole(tokenizers):
    ours, theirs = tokenizers
    for text in TEXTS:
        whole = theirs(text, return_token_type_ids=True)
        assert ours.encode_whole(text) == (whole["input_ids"], whole["token_type_ids"])
        bare = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode_whole(text, add_special_tokens=False)[0] == bare
        for limit in LIMITS:
            cut = theirs(text, truncation=True, max_length=limit)["input_ids"]
            assert ours.encode_whole(text, max_length=limit)[0] == cut


def test_pairs_cut_and_whole(tokenizers):
    ours, theirs = tokenizers
    for first in TEXTS:
        for second in TEXTS:
            assert ours.encode_whole(first, second) == pair_of(theirs, first, second)
            for limit in LIMITS[1:]:
                cut = pair_of(theirs, first, second, truncation="longest_first", max_length=limit)
                assert ours.encode_whole(first, second, max_length=limit) == cut


def pair_of(tokenizer: PreTrainedTokenizerFast, first: str, second: str, **options: Any) -> tuple[list[int], list[int]]:
    """In a batch of one: alone, transformers takes an empty second text for none."""
    encoded = tokenizer([(first, second)], return_token_type_ids=True, **options)
    return encoded["input_ids"][0], encoded["token_type_ids"][0]


def test_special_tokens_need_their_room():
    ours = OurTokenizer(SavedTokenizer(pipeline("bert"), {}, (), {}))
    with pytest.raises(InvalidRequest, match="1 tokens have no room for 2 special ones"):
        ours.encode_whole("a", max_length=1)
    assert ours.encode_whole("a b", max_length=2)[0] == [2, 3]


@pytest.mark.parametrize(("kind", "types"), [("Bert", [0, 0, 0, 1, 1]), ("TokenizersBackend", [0] * 5)])
def test_token_types_are_those_that_transformers_would_hand_to_the_model(tmp_path, monkeypatch, kind, types):
    """Also when the tokenizer is read from its converted copy."""
    monkeypatch.setenv("CONVEYOR_CACHE", str(tmp_path / "cache"))
    tokenizer = (
        BertTokenizer(vocab={word: i for i, word in enumerate(WORDS)}) if kind == "Bert"
        else PreTrainedTokenizerFast(tokenizer_object=pipeline("bert"))
    )  # fmt: skip
    tokenizer.save_pretrained(tmp_path / "model")
    for _ in range(2):
        assert load_tokenizer(tmp_path / "model").encode_whole("a", "b") == ([2, 4, 3, 5, 3], types)


def test_what_is_not_unicode_is_refused():
    ours = OurTokenizer(SavedTokenizer(pipeline("bert"), {}, (), {}))
    with pytest.raises(InvalidRequest, match="not valid Unicode"):
        ours.encode_whole("a", "\ud800")

from pathlib import Path

import pytest

from engine.api import FinishReason, RequestOutput, Tokenizer, TokenLogprobs, load_tokenizer
from serve_app.logprobs import CompletionLogprobs, chat_logprobs, visible

PEPPER = [TokenLogprobs(byte, -0.5, 1, ((byte, -0.5), (65, float("-inf")))) for byte in "é🌶x".encode()]


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    return load_tokenizer(tiny_model)


def test_bytes_of_partial_characters_join_to_the_text(tokenizer: Tokenizer) -> None:
    content = chat_logprobs(PEPPER, tokenizer)["content"]
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == "é🌶x"
    assert content[-1]["token"] == "x"


@pytest.mark.parametrize("cut", range(len(PEPPER) + 1))
def test_offsets_count_characters_and_go_on_between_pieces(tokenizer: Tokenizer, cut: int) -> None:
    logprobs = CompletionLogprobs(tokenizer, frozenset())
    offsets = logprobs.piece(PEPPER[:cut])["text_offset"] + logprobs.piece(PEPPER[cut:])["text_offset"]
    assert offsets == [0, 0, 1, 1, 1, 1, 2]


def test_partial_tokens_are_told_apart_by_their_bytes(tokenizer: Tokenizer) -> None:
    piece = CompletionLogprobs(tokenizer, frozenset()).piece(PEPPER)
    assert piece["tokens"][:2] == ["bytes:\\xc3", "bytes:\\xa9"]
    assert piece["top_logprobs"][0] == {"bytes:\\xc3": -0.5, "A": -9999.0}    # JSON has no infinity


def test_hidden_tokens_take_no_room(tokenizer: Tokenizer) -> None:
    (eos,) = tokenizer.eos_token_ids
    entries = [TokenLogprobs(eos, None, None), TokenLogprobs(97, -0.5, 1)]
    assert CompletionLogprobs(tokenizer, tokenizer.special_token_ids).piece(entries)["text_offset"] == [0, 0]
    assert CompletionLogprobs(tokenizer, frozenset()).piece(entries)["text_offset"] == [0, len("<|im_end|>")]


@pytest.mark.parametrize(
    ("finish_reason", "stop_reason", "expected"),
    [
        (None, None, 2),
        (FinishReason.LENGTH, None, 2),
        (FinishReason.STOP, "a", 2),
        (FinishReason.STOP, None, 1),
        (FinishReason.STOP, 7, 1),
    ],
)
def test_the_token_that_ended_the_answer_is_not_part_of_it(
    finish_reason: FinishReason | None, stop_reason: int | str | None, expected: int
) -> None:
    entries = (TokenLogprobs(1, -0.5, 1), TokenLogprobs(2, -0.5, 1))
    output = RequestOutput("r", logprobs=entries, finish_reason=finish_reason, stop_reason=stop_reason)
    assert len(visible(output)) == expected

from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.api import FinishReason, RequestOutput, Tokenizer, TokenLogprobs, load_tokenizer
from serve_app.logprobs import CompletionLogprobs, chat_logprobs, visible
from tests.engine.text import tiny

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
    logprobs = CompletionLogprobs(tokenizer, skip_special_tokens=False)
    offsets = logprobs.piece(PEPPER[:cut])["text_offset"] + logprobs.piece(PEPPER[cut:])["text_offset"]
    assert offsets == [0, 0, 1, 1, 1, 1, 2]


def test_partial_tokens_are_told_apart_by_their_bytes(tokenizer: Tokenizer) -> None:
    piece = CompletionLogprobs(tokenizer, skip_special_tokens=False).piece(PEPPER)
    assert piece["tokens"][:2] == ["bytes:\\xc3", "bytes:\\xa9"]
    assert piece["top_logprobs"][0] == {"bytes:\\xc3": -0.5, "A": -9999.0}    # JSON has no infinity


def test_hidden_tokens_take_no_room(tokenizer: Tokenizer) -> None:
    (eos,) = tokenizer.eos_token_ids
    entries = [TokenLogprobs(eos, None, None), TokenLogprobs(97, -0.5, 1)]
    assert CompletionLogprobs(tokenizer).piece(entries)["text_offset"] == [0, 0]
    shown = CompletionLogprobs(tokenizer, skip_special_tokens=False)
    assert shown.piece(entries)["text_offset"] == [0, len("<|im_end|>")]


def entries_of(token_ids: Sequence[int]) -> list[TokenLogprobs]:
    return [TokenLogprobs(token_id, -0.5, 1) for token_id in token_ids]


def test_offsets_are_places_in_a_text_whose_first_space_is_stripped() -> None:
    tokenizer = tiny.wrap(tiny.sentencepiece())
    prompt, output = tokenizer.encode("Dae"), [tiny.sentencepiece_tokens().index(word) for word in ("▁is", "▁the")]
    assert [tokenizer.token_bytes(token_id) for token_id in prompt] == [b" ", b"D", b"a", b"e"]
    echoed = CompletionLogprobs(tokenizer, prompt, echo="Dae").piece(entries_of(output), entries_of(prompt))
    assert echoed["text_offset"] == [0, 0, 1, 2, 3, 6]               # Dae| is| the
    alone = CompletionLogprobs(tokenizer, [0]).piece(entries_of(output))
    assert alone["text_offset"] == [0, 2]                            # is| the


def test_special_tokens_of_an_echo_take_room_where_the_client_wrote_them(tokenizer: Tokenizer) -> None:
    (eos,) = tokenizer.eos_token_ids
    prompt = [97, eos, 98]
    written = CompletionLogprobs(tokenizer, prompt, echo="a<|im_end|>b").piece(entries_of([99]), entries_of(prompt))
    assert written["text_offset"] == [0, 1, 11, 12]
    by_id = CompletionLogprobs(tokenizer, prompt, echo="ab").piece(entries_of([99]), entries_of(prompt))
    assert by_id["text_offset"] == [0, 1, 1, 2]


def test_a_character_that_the_prompt_begins_is_not_counted_twice(tokenizer: Tokenizer) -> None:
    first, *rest = "é".encode()
    piece = CompletionLogprobs(tokenizer, [97, first], echo="a\ufffd").piece(
        entries_of([*rest, 98]), entries_of([97, first])
    )
    assert piece["text_offset"] == [0, 1, 2, 2]                      # what it becomes was shown as U+FFFD


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

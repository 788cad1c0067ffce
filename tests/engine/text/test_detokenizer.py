from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.request import GenerationRequest
from engine.sampling.params import SamplingParams
from engine.text.detokenizer import Detokenizer
from engine.text.stop_strings import TextDelta
from engine.text.tokenizer import Tokenizer
from tests.engine.text import tiny

BYTE_LEVEL = tiny.wrap(tiny.byte_level())
SENTENCEPIECE = tiny.wrap(tiny.sentencepiece())
METASPACE = tiny.wrap(tiny.metaspace())
FIRST_BYTE = len(tiny.SPECIAL)                     # in the SentencePiece vocabulary
FIRST_WORD = FIRST_BYTE + 256

deterministic = settings(deadline=None, derandomize=True)
byte_level_ids = st.lists(st.integers(0, BYTE_LEVEL.vocab_size + 2), max_size=24)
chunk_sizes = st.lists(st.integers(1, 4), min_size=24, max_size=24)


@st.composite
def sentencepiece_ids(draw: st.DrawFn) -> list[int]:
    """Runs of bytes that are one character, or no character at all: others `tokenizers` judges as a whole."""
    words = st.integers(FIRST_WORD, SENTENCEPIECE.vocab_size - 1)
    characters = st.sampled_from("é日🌶").map(lambda c: [FIRST_BYTE + byte for byte in c.encode()])
    no_characters = st.lists(st.integers(FIRST_BYTE + 0x80, FIRST_BYTE + 0xBF), max_size=6)
    ids: list[int] = []
    for _ in range(draw(st.integers(0, 6))):
        ids += draw(st.lists(st.integers(0, len(tiny.SPECIAL) - 1), max_size=1))
        ids += [draw(words), *draw(characters | no_characters)]
    return ids


def text_after(tokenizer: Tokenizer, prompt: Sequence[int], output: Sequence[int]) -> str:
    return tokenizer.decode([*prompt, *output])[len(tokenizer.decode(prompt)):]


def pushed(detokenizer: Detokenizer, ids: Sequence[int], sizes: Sequence[int] | None = None) -> list[str]:
    texts, rest = [], list(ids)
    for size in sizes or [1] * len(ids):
        texts.append(detokenizer.push(rest[:size]).text)
        rest = rest[size:]
    assert not rest
    return [*texts, detokenizer.finish().text]


@deterministic
@given(byte_level_ids, byte_level_ids, chunk_sizes)
def test_byte_level_text_is_that_of_the_whole_sequence(prompt, output, sizes):
    assert "".join(pushed(Detokenizer(BYTE_LEVEL, prompt), output, sizes)) == text_after(BYTE_LEVEL, prompt, output)


@deterministic
@given(sentencepiece_ids(), st.integers(0, 40), st.booleans())
def test_sentencepiece_text_is_that_of_the_whole_sequence(ids, cut, strips_space):
    tokenizer = SENTENCEPIECE if strips_space else tiny.wrap(tiny.sentencepiece(strips_space=False))
    prompt, output = ids[:cut], ids[cut:]
    assert "".join(pushed(Detokenizer(tokenizer, prompt), output)) == text_after(tokenizer, prompt, output)


@deterministic
@given(st.lists(st.integers(0, METASPACE.vocab_size - 1), max_size=30), st.integers(0, 30))
def test_text_without_a_byte_rule_is_that_of_the_whole_sequence(ids, cut):
    prompt, output = ids[:cut], ids[cut:]
    assert METASPACE.byte_rule is None
    assert "".join(pushed(Detokenizer(METASPACE, prompt), output)) == text_after(METASPACE, prompt, output)


@deterministic
@given(byte_level_ids, byte_level_ids)
def test_only_an_incomplete_character_is_held_back(prompt, output):
    detokenizer, shown = Detokenizer(BYTE_LEVEL, prompt), ""
    for count, token_id in enumerate(output, 1):
        shown += detokenizer.push((token_id,)).text
        so_far = text_after(BYTE_LEVEL, prompt, output[:count])
        assert so_far in (shown, shown + "\ufffd")


@deterministic
@given(byte_level_ids, chunk_sizes, st.lists(st.text("ab st", min_size=1, max_size=3), max_size=2), st.integers(0, 9))
def test_text_given_out_depends_on_the_tokens_alone(output, sizes, stop, min_tokens):
    one_by_one = Detokenizer(BYTE_LEVEL, stop=stop, min_tokens=min_tokens)
    chunked = Detokenizer(BYTE_LEVEL, stop=stop, min_tokens=min_tokens)
    expected, got, position = TextDelta(), TextDelta(), 0
    for size in sizes:
        chunk, position = output[position:position + size], position + size
        delta = chunked.push(chunk)
        got = TextDelta(got.text + delta.text, delta.stop)
        for token_id in chunk:
            delta = one_by_one.push((token_id,))
            expected = TextDelta(expected.text + delta.text, delta.stop)
            if delta.stop:
                break
        assert got == expected
        if got.stop:
            return


def test_a_character_of_several_tokens_comes_whole():
    ids = [BYTE_LEVEL.encode(text)[0] for text in (" Hot", " ")]
    ids += [byte_id(byte) for byte in "🌶".encode()] + BYTE_LEVEL.encode(" done")
    assert pushed(Detokenizer(BYTE_LEVEL, [5]), ids) == [" Hot", " ", "", "", "", "🌶", " done", ""]


@pytest.mark.parametrize("tokenizer, token_id", [(BYTE_LEVEL, None), (SENTENCEPIECE, FIRST_BYTE + 0x80)])
def test_bytes_that_are_no_characters_are_not_held_back(tokenizer, token_id):
    ids = [byte_id(0x80) if token_id is None else token_id] * 1600
    assert pushed(Detokenizer(tokenizer, [5]), ids) == ["\ufffd"] * 1600 + [""]


def test_without_a_byte_rule_an_incomplete_character_is_given_up_after_eight_tokens():
    class Undecodable:
        byte_rule = None
        special_token_ids = frozenset[int]()

        def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
            return "\ufffd" * len(token_ids)

    detokenizer = Detokenizer(Undecodable())       # type: ignore[arg-type]
    texts = [detokenizer.push((1,)).text for _ in range(40)]
    assert "".join(texts) + detokenizer.finish().text == "\ufffd" * 40
    assert all("".join(texts[:count]).count("\ufffd") >= count - 8 for count in range(40))


def test_a_run_of_byte_tokens_keeps_its_characters_whatever_follows():
    ids = [FIRST_BYTE + byte for byte in "é".encode()] + [FIRST_BYTE + 0xFF]
    assert pushed(Detokenizer(SENTENCEPIECE, [FIRST_WORD]), ids) == ["", "é", "\ufffd", ""]


def test_the_leading_space_is_stripped_only_where_the_prompt_is_empty():
    queen = SENTENCEPIECE_IDS["▁queen"]
    assert pushed(Detokenizer(SENTENCEPIECE, [0]), [queen, queen]) == ["queen", " queen", ""]
    assert pushed(Detokenizer(SENTENCEPIECE, [0, queen]), [queen, queen]) == [" queen", " queen", ""]


def test_special_tokens_are_text_only_when_asked_for():
    ids = [byte_id(ord("a")), 2, byte_id(ord("b"))]
    assert pushed(Detokenizer(BYTE_LEVEL), ids) == ["a", "", "b", ""]
    assert pushed(Detokenizer(BYTE_LEVEL, skip_special_tokens=False), ids) == ["a", "<|im_end|>", "b", ""]


def test_a_stop_string_inside_a_token_cuts_it():
    ids = BYTE_LEVEL.encode("x stop")
    detokenizer = Detokenizer(BYTE_LEVEL, stop=("to",))
    assert detokenizer.push(ids) == TextDelta("x s", "to")


def test_text_held_for_a_stop_string_is_released_at_the_end():
    detokenizer = Detokenizer(BYTE_LEVEL, stop=("done\nAAAA",))
    assert detokenizer.push(BYTE_LEVEL.encode(" Hot done")) == TextDelta(" Hot ")
    assert detokenizer.finish() == TextDelta("done")


def test_an_included_stop_string_is_not_held_back():
    detokenizer = Detokenizer(BYTE_LEVEL, stop=("ab",), include_stop=True)
    assert detokenizer.push([byte_id(ord("a"))]) == TextDelta("a")
    assert detokenizer.push([byte_id(ord("b"))]) == TextDelta("b", "ab")


def test_a_stop_string_before_min_tokens_is_ordinary_text():
    a = byte_id(ord("a"))
    detokenizer = Detokenizer(BYTE_LEVEL, stop=("aa",), min_tokens=3)
    assert detokenizer.push([a, a]) == TextDelta("a")
    assert detokenizer.push([a]) == TextDelta("", "aa")


def test_resumed_output_is_not_given_out_again():
    sampling = SamplingParams(max_tokens=9, stop=("done!",))
    resumed = tuple(BYTE_LEVEL.encode(" Hot do"))
    detokenizer = Detokenizer.of(BYTE_LEVEL, GenerationRequest("r", (5,), sampling, resume_token_ids=resumed))
    assert detokenizer.push(BYTE_LEVEL.encode("ne?")).text == "done?"


def byte_id(byte: int) -> int:
    return next(i for i in range(3, 3 + 256) if BYTE_LEVEL.token_bytes(i) == bytes([byte]))


SENTENCEPIECE_IDS = {token: token_id for token_id, token in enumerate(tiny.sentencepiece_tokens())}


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE, METASPACE])
def test_special_tokens_that_a_parser_needs_are_kept(tokenizer):
    start, end, im_end = map(tokenizer.special_token_id, tiny.SPECIAL)
    detokenizer = Detokenizer(tokenizer, (start,), kept_special_token_ids=(im_end,))
    assert "".join(pushed(detokenizer, (start, im_end, end, im_end))) == "<|im_end|><|im_end|>"

import pytest

from engine.sampling.grammar.checks import GrammarError
from engine.sampling.grammar.state import GrammarState
from engine.text.gguf_tokenizer import read_gguf_tokenizer
from engine.text.token_bytes import byte_alphabet
from engine.text.tokenizer import Tokenizer
from tests.engine.sampling.grammar.tokenizers import (
    BYTE_LEVEL,
    SENTENCEPIECE,
    allowed_ids,
    allowed_texts,
    compiled,
    follow,
)
from tests.engine.text import tiny

EOS = 1
VOCAB = BYTE_LEVEL.vocab_size


def state(kind, text, tokenizer=BYTE_LEVEL, ends=(EOS,), vocab_size=None, **fields) -> GrammarState:
    return GrammarState(compiled(kind, text, tokenizer, **fields), ends, vocab_size or tokenizer.vocab_size)


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE], ids=["byte level", "sentencepiece"])
def test_only_what_goes_on_with_the_text_is_allowed(tokenizer):
    number = state("regex", "[0-9]{2}", tokenizer)
    assert allowed_texts(number, tokenizer) == {str(digit).encode() for digit in range(10)}
    assert follow(number, "42", tokenizer)
    assert allowed_ids(number) == [EOS] and number.must_end


def test_end_is_allowed_where_the_text_may_end_but_not_before():
    number = state("regex", "[0-9]+")
    assert EOS not in allowed_ids(number)
    assert follow(number, "4")
    assert EOS in allowed_ids(number) and not number.must_end


def test_tokens_of_several_characters_and_of_parts_of_one_are_allowed():
    assert {b" Hot", b" "} <= allowed_texts(state("regex", " Hot| done"))
    assert allowed_texts(state("regex", "[日é]")) >= {"日".encode(), "日".encode()[:1], "é".encode()[:1]}


def test_special_tokens_are_never_text():
    anything = state("regex", r"(?s:.*)")
    assert set(allowed_ids(anything)) & set(BYTE_LEVEL.special_token_ids) == {EOS}
    assert not set(allowed_ids(state("regex", r"(?s:.+)"))) & set(BYTE_LEVEL.special_token_ids)


def test_a_special_token_spelled_out_is_text_byte_by_byte():
    spelled = state("regex", "<s>")
    assert allowed_texts(spelled) == {b"<"} and 0 not in allowed_ids(spelled)


def test_lark_names_special_tokens_only_where_it_may():
    text = 'start: "a" <[2]>'
    marked = state("lark", text, names_tokens=True)
    assert follow(marked, "a")
    assert allowed_ids(marked) == [2]
    with pytest.raises(GrammarError, match="unknown special token"):
        state("lark", 'start: "a" <|im_end|>')


def test_ids_beyond_the_vocabulary_of_the_model_are_never_allowed():
    most = state("regex", r"(?s:.*)", vocab_size=100)
    assert most.allowed.size == 4 and 90 < max(allowed_ids(most)) < 100
    more = state("regex", r"(?s:.*)", vocab_size=VOCAB + 100)
    assert more.allowed.size == -(-(VOCAB + 100) // 32) and max(allowed_ids(more)) < VOCAB


def test_without_an_end_a_text_that_is_complete_is_over():
    text = state("regex", "ab?", ends=())
    assert not text.is_over
    assert follow(text, "a") and not text.is_over
    assert follow(text, "b") and text.is_over and allowed_ids(text) == []


def test_a_stop_token_ends_where_the_text_may_end_and_is_not_consumed():
    full_stop = BYTE_LEVEL.encode(".")[0]
    number = state("regex", "[0-9]+", ends=(EOS, full_stop))
    assert full_stop not in allowed_ids(number)
    assert follow(number, "7") and {full_stop, EOS} < set(allowed_ids(number))
    number.append(full_stop)
    assert number.error is None


def test_a_token_that_does_not_fit_is_an_error_and_allows_nothing():
    number = state("regex", "[0-9]+")
    number.append(BYTE_LEVEL.encode("x")[0])
    assert number.error is not None and "does not fit" in number.error
    assert allowed_ids(number) == [] and not number.is_over


def test_requests_that_share_a_grammar_do_not_disturb_each_other():
    grammar = compiled("regex", "[ab]c|d")
    first, second = (GrammarState(grammar, (EOS,), VOCAB) for _ in range(2))
    assert follow(first, "a")
    assert allowed_texts(second) == {b"a", b"b", b"d"}
    assert allowed_texts(first) == {b"c"}


def test_forced_text_is_in_the_models_own_tokens():
    assert allowed_texts(state("regex", " Hot done")) == {b" Hot"}
    assert allowed_texts(state("regex", "Dae", SENTENCEPIECE), SENTENCEPIECE) <= {b"Dae", b"D"}


def test_a_gguf_file_s_tokenizer_has_grammars(tmp_path):
    letters = [letter for letter, _ in sorted(byte_alphabet().items(), key=lambda item: item[1])]
    fields = {"model": "gpt2", "pre": "qwen2", "tokens": [*letters, "ab", "<eos>"], "token_type": [1] * 257 + [3],
              "merges": ["a b"], "eos_token_id": 257}  # fmt: skip
    path = tiny.write_gguf(tmp_path / "model.gguf", {f"tokenizer.ggml.{name}": value for name, value in fields.items()})
    tokenizer = Tokenizer(read_gguf_tokenizer(path))
    text = state("regex", "a[bc]+", tokenizer, ends=(257,))
    assert allowed_texts(text, tokenizer) == {b"a", b"ab"}
    text.append(256)
    assert {b"b", b"c"} < allowed_texts(text, tokenizer) and 257 in allowed_ids(text)


def test_white_space_between_json_tokens_is_bounded():
    document = state("json_schema", '{"type": "object", "x-guidance": {"whitespace_pattern": " *"}}')
    assert follow(document, "{" + " " * 40)
    assert allowed_texts(document) == {b"}", b'"'}

from pathlib import Path

from bench import vocabulary


class FiveIds:
    """1 is special, 3 is the id of no token."""

    vocab_size = 5
    special_token_ids = frozenset({1})

    def token_bytes(self, token_id):
        return {0: b"a", 1: b"<end>", 2: b"\xc3", 4: b" "}.get(token_id, b"")


def test_ordinary_tokens_are_those_that_are_neither_special_nor_missing(monkeypatch):
    monkeypatch.setattr(vocabulary, "load_tokenizer", lambda path: FiveIds())
    assert vocabulary.vocabulary_of(Path("model.gguf")) == [0, 2, 4]

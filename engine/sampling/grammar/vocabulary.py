"""Vocabulary: a tokenizer's tokens as llguidance sees them."""

from collections.abc import Callable

import llguidance

from engine.text.tokenizer import Tokenizer


class Vocabulary:
    """Tokens as bytes, with one id of its own behind the last: the end of a text, whatever ends a request.

    Special tokens and those that end a sequence are no text, so no grammar allows them unless it names their ids.
    Takes a second or two for 150,000 tokens, and holds the interpreter's lock meanwhile: build it before it is needed.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.end_id = tokenizer.vocab_size
        not_text = {*tokenizer.special_token_ids, *tokenizer.eos_token_ids, self.end_id}
        # Lark could name a special token by its spelling: none has one that is UTF-8.
        tokens = [
            b"\xff<%d>" % token_id if token_id in not_text else tokenizer.token_bytes(token_id)
            for token_id in range(self.end_id + 1)
        ]
        source = _Source(tokenizer, tokens, sorted(not_text), self.end_id)
        wrapper = llguidance.TokenizerWrapper(source)
        self.tokenizer = llguidance.LLTokenizer(wrapper, n_vocab=len(tokens), eos_token=self.end_id)
        source.greedy = self.tokenizer.greedy_tokenize


class _Source:
    """What llguidance asks of a tokenizer."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, tokens: list[bytes], special_token_ids: list[int], end_id: int) -> None:
        self.tokens = tokens
        self.special_token_ids = special_token_ids
        self.eos_token_id = end_id
        self.greedy: Callable[[str], list[int]] | None = None      # llguidance's own, once it is built
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> list[int]:
        """Tokens of a text that a grammar leaves no choice about; the model's own, where they spell just that text."""
        ids = self._tokenizer.encode(text, add_special_tokens=False)
        if b"".join(self.tokens[token_id] for token_id in ids) == text.encode():
            return ids
        assert self.greedy is not None
        return self.greedy(text)               # some tokenizers begin every text with a space

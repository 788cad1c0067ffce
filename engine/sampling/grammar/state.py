"""GrammarState: how far one request's output has come in its grammar."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.sampling.grammar.compiler import Grammar

Words = npt.NDArray[np.int32]


class GrammarState:
    """What may follow. Depends on the output tokens only: the same after a preemption or a resume."""

    def __init__(self, grammar: Grammar, end_ids: Sequence[int], vocab_size: int) -> None:
        """`end_ids` end the request; they are allowed where the grammar's text may end, and are never part of it."""
        self._end_id = grammar.vocabulary.end_id
        self._grammar = grammar
        self._matcher = grammar.start()
        self._ends = pack(end_ids, vocab_size)
        self._known = pack(range(min(vocab_size, self._end_id)), vocab_size)
        self._scratch = np.zeros(self._end_id // 32 + 1, np.int32)
        self._text: Words | None = None        # tokens that go on with the text; None: not computed yet
        self._can_end = False
        self._error: str | None = None

    def append(self, token_id: int) -> None:
        """One more output token."""
        self._text = None
        if not self._ends[token_id // 32] >> (token_id % 32) & 1 and not self._matcher.consume_token(token_id):
            self._error = f"token {token_id} does not fit the request's grammar"

    @property
    def error(self) -> str | None:
        """Why nothing can follow, though the text is not at an end."""
        self._compute()
        return self._error

    @property
    def allowed(self) -> Words:
        """int32 [vocab_size / 32, rounded up]: bit i of word w allows token 32 w + i."""
        text = self._compute()
        return text | self._ends if self._can_end else text

    @property
    def must_end(self) -> bool:
        """Whether no token but those that end the request is allowed."""
        return not (self._compute() & ~self._ends).any()

    @property
    def is_over(self) -> bool:
        """Whether the text is complete, and nothing is allowed that could end the request."""
        return not self.allowed.any() and self._can_end

    def _compute(self) -> Words:
        if self._text is None:
            self._matcher.unsafe_compute_mask_ptr(self._scratch.ctypes.data, self._scratch.nbytes)
            if self._error is None and self._matcher.is_error():
                self._error = "the request's grammar is too complex to follow from here on"
                self._grammar.is_spent = True
            if self._error is not None:
                self._scratch.fill(0)
            self._can_end = bool(self._scratch[self._end_id // 32] >> (self._end_id % 32) & 1)
            text = np.zeros_like(self._known)
            num_words = min(text.size, self._scratch.size)
            text[:num_words] = self._scratch[:num_words]
            self._text = text & self._known
        return self._text


def pack(token_ids: Sequence[int], vocab_size: int) -> Words:
    """int32 [vocab_size / 32, rounded up], with the bits of `token_ids` set."""
    bits = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
    bits[np.asarray(token_ids, np.int64)] = 1
    return np.packbits(bits, bitorder="little").view(np.int32)

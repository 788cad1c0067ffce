"""From the output tokens of one request to its text, step by step.

The text is that of the whole sequence: decode(prompt + output) without decode(prompt). A character is given out with
the token that completes it; bytes that are no UTF-8 become U+FFFD as soon as that is certain. What has been given out
after some tokens depends on those tokens only, not on how they were pushed.

One difference from `tokenizers`: its SentencePiece decoder judges a run of byte tokens as a whole, so that a later
invalid byte turns earlier characters of the run into U+FFFD. That cannot be streamed; here only invalid bytes do.
"""

import codecs
from collections.abc import Sequence
from typing import Protocol

from engine.request import GenerationRequest
from engine.text.stop_strings import StopChecker, TextDelta
from engine.text.token_bytes import ByteRule
from engine.text.tokenizer import Tokenizer

_REPLACEMENTS = {0xDC00 + byte: "\ufffd" for byte in range(0x80, 0x100)}   # what surrogateescape makes of bytes
_NONE: frozenset[int] = frozenset()
_MAX_PENDING_TOKENS = 8                            # without a byte rule: then an incomplete character is given up
_WINDOW_TOKENS = 6                                 # without a byte rule: prompt tokens decoded along for context


class Detokenizer:
    """The text of one request's output. Push every output token except one that ended the request by its id."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int] = (),
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        min_tokens: int = 0,
        skip_special_tokens: bool = True,
        kept_special_token_ids: Sequence[int] = (),
    ) -> None:
        skipped = tokenizer.special_token_ids.difference(kept_special_token_ids) if skip_special_tokens else _NONE
        self._decoder = _decoder(tokenizer, prompt_token_ids, skipped)
        self.push_text = self._decoder.push        # is `push_token` where there are no stop strings
        self._stop = StopChecker(stop, include_stop=include_stop)
        self._min_tokens = min_tokens
        self._num_tokens = 0

    @classmethod
    def of(cls, tokenizer: Tokenizer, request: GenerationRequest) -> "Detokenizer":
        """For `request`; the text of its `resume_token_ids` counts as already given out."""
        sampling = request.sampling
        detokenizer = cls(
            tokenizer,
            request.prompt_token_ids,
            stop=sampling.stop,
            include_stop=sampling.include_stop_str_in_output,
            min_tokens=sampling.min_tokens,
            skip_special_tokens=sampling.skip_special_tokens,
            kept_special_token_ids=sampling.kept_special_token_ids,
        )
        detokenizer.push(request.resume_token_ids)
        return detokenizer

    def push(self, token_ids: Sequence[int]) -> TextDelta:
        """The text that the next output tokens add; tokens behind one that completes a stop string are not read."""
        texts = []
        for token_id in token_ids:
            delta = self.push_token(token_id)
            texts.append(delta.text)
            if delta.stop is not None:
                return TextDelta("".join(texts), delta.stop)
        return TextDelta("".join(texts))

    def push_token(self, token_id: int) -> TextDelta:
        """The text that the next output token adds."""
        self._num_tokens += 1
        return self._checked(self._decoder.push(token_id))

    def finish(self) -> TextDelta:
        """All that was held back, once the request has ended otherwise than by a stop string."""
        delta = self._checked(self._decoder.finish())
        return delta if delta.stop is not None else TextDelta(delta.text + self._stop.flush())

    def _checked(self, text: str) -> TextDelta:
        return self._stop.push(text, may_stop=self._num_tokens >= self._min_tokens)


class _Decoder(Protocol):
    """Tokens to complete characters."""

    def push(self, token_id: int) -> str: ...

    def finish(self) -> str: ...


def _decoder(tokenizer: Tokenizer, prompt_token_ids: Sequence[int], skipped: frozenset[int]) -> _Decoder:
    if tokenizer.byte_rule is None:
        return _WindowDecoder(tokenizer, prompt_token_ids, skipped)
    return _ByteDecoder(tokenizer, tokenizer.byte_rule, prompt_token_ids, skipped)


class _ByteDecoder:
    """Decoding where a text is the concatenation of its tokens' bytes."""

    def __init__(
        self, tokenizer: Tokenizer, rule: ByteRule, prompt_token_ids: Sequence[int], skipped: frozenset[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._whole_texts = tokenizer.whole_texts
        self._skipped = skipped
        self._utf8 = codecs.getincrementaldecoder("utf-8")(rule.decode_errors)
        # A lead byte starts afresh whatever precedes it: three bytes tell what the prompt leaves incomplete.
        tail = self._utf8.decode(self._last_bytes(prompt_token_ids, 3))
        self._strips_space = rule.strips_first_space and not tail and not self._pending()
        # decode(prompt) shows incomplete bytes as U+FFFD: so many characters of the output are the prompt's.
        self._num_shown = len(self._pending().decode(errors=rule.decode_errors))
        self._is_clear = self._nothing_due()

    def push(self, token_id: int) -> str:
        if self._is_clear:                         # nearly every token of nearly every text
            text = self._whole_texts[token_id]
            if text is not None:
                return text
        if token_id in self._skipped:
            return ""
        text = self._show(self._utf8.decode(self._tokenizer.token_bytes(token_id)))
        self._is_clear = self._nothing_due()
        return text

    def _nothing_due(self) -> bool:
        """Whether a token that is whole characters adds just these: no incomplete one, and nothing to leave out."""
        return not self._strips_space and not self._num_shown and not self._pending()

    def finish(self) -> str:
        return self._show(self._utf8.decode(b"", final=True))

    def _show(self, text: str) -> str:
        if not text:
            return text
        if self._strips_space:
            self._strips_space = False
            text = text.removeprefix(" ")
        if self._num_shown:
            shown = min(self._num_shown, len(text))
            self._num_shown -= shown
            text = text[shown:]
        return text if text.isascii() else text.translate(_REPLACEMENTS)

    def _last_bytes(self, token_ids: Sequence[int], count: int) -> bytes:
        tail = b""
        for token_id in reversed(token_ids):
            if len(tail) >= count:
                break
            if token_id not in self._skipped:
                tail = self._tokenizer.token_bytes(token_id) + tail
        return tail

    def _pending(self) -> bytes:
        return self._utf8.getstate()[0]


class _WindowDecoder:
    """Decoding by the tokenizer itself, of a window that starts a few tokens back: for decoders without a byte rule.

    window_ids   [0, num_shown) tokens whose text is out, kept for context; the rest wait for a complete character
    """

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], skipped: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._window_ids = list(prompt_token_ids[-_WINDOW_TOKENS:])
        self._num_shown = len(self._window_ids)

    def push(self, token_id: int) -> str:
        self._window_ids.append(token_id)
        return self._new_text(final=len(self._window_ids) - self._num_shown > _MAX_PENDING_TOKENS)

    def finish(self) -> str:
        return self._new_text(final=True)

    def _new_text(self, *, final: bool) -> str:
        shown, text = self._decode(self._num_shown), self._decode(len(self._window_ids))
        if not final and (len(text) <= len(shown) or text.endswith("\ufffd")):
            return ""
        self._window_ids = self._window_ids[self._num_shown:]
        self._num_shown = len(self._window_ids)
        return text[len(shown):]

    def _decode(self, count: int) -> str:
        shown = [token_id for token_id in self._window_ids[:count] if token_id not in self._skipped]
        return self._tokenizer.decode(shown, skip_special_tokens=False)

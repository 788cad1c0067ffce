"""Log probabilities in the two shapes of the OpenAI API."""

from collections.abc import Sequence
from typing import Any

from engine.api import Detokenizer, FinishReason, RequestOutput, Tokenizer, TokenLogprobs

LEAST_LOGPROB = -9999.0                                # JSON has no -Infinity; the OpenAI API says this instead


def visible(output: RequestOutput) -> tuple[TokenLogprobs, ...]:
    """The entries of `output` whose tokens are part of the answer: not those of the token that ended it."""
    is_ended_by_token = output.finish_reason is FinishReason.STOP and not isinstance(output.stop_reason, str)
    return output.logprobs[:-1] if is_ended_by_token else output.logprobs


def chat_logprobs(entries: Sequence[TokenLogprobs], tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        "content": [
            _chat_token(tokenizer, entry.token_id, entry.logprob)
            | {"top_logprobs": [_chat_token(tokenizer, *alternative) for alternative in entry.top]}
            for entry in entries
        ],
        "refusal": None,
    }


def _chat_token(tokenizer: Tokenizer, token_id: int, logprob: float | None) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token_id)
    return {"token": raw.decode("utf-8", "replace"), "logprob": _finite(logprob), "bytes": list(raw)}


def prompt_logprobs(
    entries: Sequence[TokenLogprobs], tokenizer: Tokenizer
) -> list[dict[str, dict[str, Any]] | None]:
    """vLLM's shape: for each token of the prompt an object of token ids, its own first; null for the first token."""
    return [None if entry.logprob is None else _prompt_token(entry, tokenizer) for entry in entries]


def _prompt_token(entry: TokenLogprobs, tokenizer: Tokenizer) -> dict[str, dict[str, Any]]:
    own = (entry.token_id, entry.logprob, entry.rank)
    ranked = [(token_id, logprob, rank) for rank, (token_id, logprob) in enumerate(entry.top, 1)]
    return {
        str(token_id): {
            "logprob": _finite(logprob),
            "rank": rank,
            "decoded_token": tokenizer.token_bytes(token_id).decode("utf-8", "replace"),
        }
        for token_id, logprob, rank in dict.fromkeys([own, *ranked])
    }


class CompletionLogprobs:
    """The parallel lists of a completion choice, piece by piece: offsets go on from one piece to the next.

    `text_offset` counts characters of the choice's text; a token inside a character has the offset of that which
    follows it.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int] = (), *, echo: str | None = None,
        skip_special_tokens: bool = True,
    ) -> None:  # fmt: skip
        """`echo` is the prompt as the text begins with it."""
        self._tokenizer = tokenizer
        self._echo = echo or ""
        self._skip_special_tokens = skip_special_tokens
        self._num_characters = len(self._echo)         # complete ones so far
        self._output = self._detokenizer(prompt_token_ids)

    def _detokenizer(self, prompt_token_ids: Sequence[int] = ()) -> Detokenizer:
        return Detokenizer(self._tokenizer, prompt_token_ids, skip_special_tokens=self._skip_special_tokens)

    def piece(
        self, entries: Sequence[TokenLogprobs], prompt_entries: Sequence[TokenLogprobs] = ()
    ) -> dict[str, Any]:
        """Of the output's next tokens; before the first of them, those of an echoed prompt."""
        offsets = self._prompt_offsets(prompt_entries)
        for entry in entries:
            offsets.append(self._num_characters)
            self._num_characters += len(self._output.push((entry.token_id,)).text)
        entries = (*prompt_entries, *entries)
        return {
            "tokens": [self._token(entry.token_id) for entry in entries],
            "token_logprobs": [_finite(entry.logprob) for entry in entries],
            "top_logprobs": [self._top(entry) for entry in entries],
            "text_offset": offsets,
        }

    def _prompt_offsets(self, entries: Sequence[TokenLogprobs]) -> list[int]:
        """A prompt sent as text is echoed as it was sent: special tokens are part of it where the client wrote them."""
        offsets, offset = [], 0
        detokenizer = self._detokenizer()
        for entry in entries:
            offsets.append(min(offset, len(self._echo)))
            text = detokenizer.push((entry.token_id,)).text
            if not text and entry.token_id in self._tokenizer.special_token_ids:
                spelled = self._token(entry.token_id)
                text = spelled if self._echo.startswith(spelled, offset) else ""
            offset += len(text)
        return offsets

    def _top(self, entry: TokenLogprobs) -> dict[str, float] | None:
        if entry.logprob is None:
            return None
        alternatives = {self._token(token_id): logprob for token_id, logprob in entry.top}
        return {token: value for token, logprob in alternatives.items() if (value := _finite(logprob)) is not None}

    def _token(self, token_id: int) -> str:
        """A token that is no whole text is told by its bytes, as the OpenAI API does: `bytes:\\xf0\\x9f`."""
        raw = self._tokenizer.token_bytes(token_id)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _finite(logprob: float | None) -> float | None:
    return None if logprob is None else max(logprob, LEAST_LOGPROB)

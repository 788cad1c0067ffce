"""Log probabilities in the two shapes of the OpenAI API."""

import codecs
from collections.abc import Sequence, Set
from typing import Any

from engine.api import FinishReason, RequestOutput, Tokenizer, TokenLogprobs

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
    """The parallel lists of a completion choice, piece by piece: offsets go on from one piece to the next."""

    def __init__(self, tokenizer: Tokenizer, hidden_token_ids: Set[int]) -> None:
        self._tokenizer = tokenizer
        self._hidden_token_ids = hidden_token_ids     # tokens that are not in the text
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._num_characters = 0                      # complete ones so far

    def piece(self, entries: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """`text_offset` counts characters; a token inside a character has the offset of that which follows it."""
        offsets = []
        for entry in entries:
            offsets.append(self._num_characters)
            if entry.token_id not in self._hidden_token_ids:
                self._num_characters += len(self._decoder.decode(self._tokenizer.token_bytes(entry.token_id)))
        return {
            "tokens": [self._token(entry.token_id) for entry in entries],
            "token_logprobs": [_finite(entry.logprob) for entry in entries],
            "top_logprobs": [self._top(entry) for entry in entries],
            "text_offset": offsets,
        }

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

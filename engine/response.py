"""Response: what one request's client has been told so far; turns sampled tokens into text and endings."""

from dataclasses import dataclass, replace

from engine.outputs import RequestOutput, TokenLogprobs
from engine.request import FinishReason, GenerationRequest, Request
from engine.text.detokenizer import Detokenizer
from engine.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a request ends."""

    reason: FinishReason
    stop_reason: int | str | None = None
    error: str | None = None


class Response:
    """One request's outgoing side: incremental text, stop checks, the prompt's log probabilities."""

    def __init__(self, generation: GenerationRequest, tokenizer: Tokenizer, eos_token_ids: frozenset[int]) -> None:
        sampling = generation.sampling
        self._generation = generation
        self._end_token_ids = frozenset() if sampling.ignore_eos else eos_token_ids
        stop_token_ids = frozenset(sampling.stop_token_ids)
        self._ending_token_ids = self._end_token_ids | stop_token_ids if stop_token_ids else self._end_token_ids
        self._detokenizer = Detokenizer.of(tokenizer, generation)
        self._has_stop_strings = bool(sampling.stop)
        self._prompt_logprobs: list[TokenLogprobs] = []  # of prompt positions [0, len)
        self._prompt_logprobs_due = sampling.prompt_logprobs is not None

    def push(self, token_id: int) -> tuple[str, Ending | None]:
        """Take a sampled token; returns the text it frees and, if it ends the request, how."""
        if token_id in self._ending_token_ids:
            return self._push_ending(token_id)
        if not self._has_stop_strings:
            return self._detokenizer.push_text(token_id), None
        delta = self._detokenizer.push_token(token_id)
        return delta.text, None if delta.stop is None else Ending(FinishReason.STOP, stop_reason=delta.stop)

    def _push_ending(self, token_id: int) -> tuple[str, Ending]:
        if token_id in self._end_token_ids:
            return "", Ending(FinishReason.STOP)
        is_shown = self._generation.sampling.include_stop_str_in_output
        text = self._detokenizer.push_token(token_id).text if is_shown else ""
        return text, Ending(FinishReason.STOP, stop_reason=token_id)

    def add_prompt_logprobs(self, position: int, entries: tuple[TokenLogprobs, ...]) -> None:
        """Log probabilities of prompt positions [position, position + len(entries)); known ones are skipped.

        A preempted prompt is computed again, and so are they.
        """
        if not self._prompt_logprobs:
            self._prompt_logprobs.append(TokenLogprobs(self._generation.prompt_token_ids[0], None, None))
        known = len(self._prompt_logprobs)
        self._prompt_logprobs.extend(entries[max(known - position, 0) :])

    def output(
        self, request: Request, token_ids: tuple[int, ...], text: str, logprobs: tuple[TokenLogprobs, ...]
    ) -> RequestOutput:
        """What the client gains now."""
        return RequestOutput(
            request.request_id, token_ids, text, request.num_prompt_tokens, request.num_output_tokens,
            request.num_cached_tokens, logprobs, self._take_prompt_logprobs() if self._prompt_logprobs_due else None,
        )  # fmt: skip

    def _take_prompt_logprobs(self) -> tuple[TokenLogprobs, ...]:
        self._prompt_logprobs_due = False
        return tuple(self._prompt_logprobs) or (TokenLogprobs(self._generation.prompt_token_ids[0], None, None),)

    def last_output(
        self, request: Request, ending: Ending, token_ids: tuple[int, ...] = (), text: str = "",
        logprobs: tuple[TokenLogprobs, ...] = (),
    ) -> RequestOutput:  # fmt: skip
        """The client's last output: what it gains now, and whatever text was held back in vain.

        After an abort nothing is released: if the request goes on elsewhere, that is still to come.
        """
        if ending.reason is not FinishReason.ABORT and not isinstance(ending.stop_reason, str):
            rest = self._detokenizer.finish()
            text += rest.text
            if rest.stop is not None and ending.reason is FinishReason.LENGTH:
                ending = Ending(FinishReason.STOP, stop_reason=rest.stop)
        return self.output(request, token_ids, text, logprobs)._replace(
            finish_reason=ending.reason, stop_reason=ending.stop_reason, error=ending.error
        )

    def resumable(self, token_ids: list[int]) -> GenerationRequest:
        """The request with all its output as resume tokens. `token_ids` are prompt and output."""
        num_prompt_tokens = len(self._generation.prompt_token_ids)
        return replace(self._generation, resume_token_ids=tuple(token_ids[num_prompt_tokens:]))

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
    """One request's outgoing side: incremental text, stop checks, log probabilities not sent yet."""

    def __init__(self, generation: GenerationRequest, tokenizer: Tokenizer, eos_token_ids: frozenset[int]) -> None:
        sampling = generation.sampling
        self._generation = generation
        self._end_token_ids = frozenset() if sampling.ignore_eos else eos_token_ids
        self._detokenizer = Detokenizer.of(tokenizer, generation)
        self._token_ids: list[int] = []                 # tokens of the output under way
        self._logprobs: list[TokenLogprobs] = []
        self._prompt_logprobs: list[TokenLogprobs] = []  # of prompt positions [0, len)
        self._prompt_logprobs_due = sampling.prompt_logprobs is not None

    def push(self, token_id: int, logprobs: TokenLogprobs | None) -> tuple[str, Ending | None]:
        """Take a sampled token; returns the text it frees and, if it ends the request, how."""
        sampling = self._generation.sampling
        self._token_ids.append(token_id)
        if logprobs is not None:
            self._logprobs.append(logprobs)
        if token_id in self._end_token_ids:
            return "", Ending(FinishReason.STOP)
        if token_id in sampling.stop_token_ids:
            text = self._detokenizer.push_token(token_id).text if sampling.include_stop_str_in_output else ""
            return text, Ending(FinishReason.STOP, stop_reason=token_id)
        delta = self._detokenizer.push_token(token_id)
        return delta.text, None if delta.stop is None else Ending(FinishReason.STOP, stop_reason=delta.stop)

    def add_prompt_logprobs(self, position: int, entries: tuple[TokenLogprobs, ...]) -> None:
        """Log probabilities of prompt positions [position, position + len(entries)); known ones are skipped.

        A preempted prompt is computed again, and so are they.
        """
        if not self._prompt_logprobs:
            self._prompt_logprobs.append(TokenLogprobs(self._generation.prompt_token_ids[0], None, None))
        known = len(self._prompt_logprobs)
        self._prompt_logprobs.extend(entries[max(known - position, 0) :])

    def output(self, request: Request, text: str) -> RequestOutput:
        """What the client gains now."""
        token_ids, self._token_ids = tuple(self._token_ids), []
        logprobs, self._logprobs = tuple(self._logprobs), []
        prompt_logprobs = None
        if self._prompt_logprobs_due:
            self._prompt_logprobs_due = False
            prompt_logprobs = tuple(self._prompt_logprobs) or (
                TokenLogprobs(self._generation.prompt_token_ids[0], None, None),
            )
        return RequestOutput(
            request_id=request.request_id,
            token_ids=token_ids,
            text=text,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            num_prompt_tokens=request.num_prompt_tokens,
            num_output_tokens=request.num_output_tokens,
            num_cached_tokens=request.num_cached_tokens,
        )

    def last_output(self, request: Request, ending: Ending, text: str) -> RequestOutput:
        """The client's last output: `text`, and whatever was held back in vain.

        After an abort nothing is released: if the request goes on elsewhere, that is still to come.
        """
        if ending.reason is not FinishReason.ABORT and not isinstance(ending.stop_reason, str):
            rest = self._detokenizer.finish()
            text += rest.text
            if rest.stop is not None and ending.reason is FinishReason.LENGTH:
                ending = Ending(FinishReason.STOP, stop_reason=rest.stop)
        return self.output(request, text)._replace(
            finish_reason=ending.reason, stop_reason=ending.stop_reason, error=ending.error
        )

    def resumable(self, token_ids: list[int]) -> GenerationRequest:
        """The request with all its output as resume tokens. `token_ids` are prompt and output."""
        num_prompt_tokens = len(self._generation.prompt_token_ids)
        return replace(self._generation, resume_token_ids=tuple(token_ids[num_prompt_tokens:]))

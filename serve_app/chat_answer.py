"""ChatAnswer: the engine's outputs as chat completion objects, whole or in chunks."""

from collections.abc import Iterable, Sequence
from typing import Any

from engine.api import FinishReason, RequestOutput
from serve_app.deltas import Delta, Deltas, message
from serve_app.logprobs import chat_logprobs, prompt_logprobs, visible
from serve_app.schemas.chat import ChatRequest
from serve_app.schemas.usage import usage
from serve_app.service import Identity, Service
from serve_app.sse import Chunk


class ChatAnswer:
    def __init__(self, service: Service, body: ChatRequest, identity: Identity, deltas: Sequence[Deltas]) -> None:
        """`deltas` are of each choice."""
        self._tokenizer = service.tokenizer
        self._body = body
        self._identity = identity
        self._deltas = deltas
        self._begun: set[int] = set()                 # choices whose role has been sent

    def chunks(self, output: RequestOutput, index: int) -> Iterable[Chunk]:
        """The role first, then what the answer says, then the finish reason, each in chunks of its own."""
        choice = self._deltas[index]
        if index not in self._begun:
            self._begun.add(index)
            yield self._chunk(index, choice.first)
        logprobs = self._logprobs(output)
        deltas = choice.read(output.text, is_last=output.is_finished)
        if logprobs and not deltas:
            deltas = [{"content": ""}]                # tokens whose text is still to come, or is none
        for delta in deltas:
            yield self._chunk(index, delta, logprobs=logprobs)
            logprobs = None
        if output.is_finished:
            yield self._chunk(index, {}, finish_reason=_finish_reason(choice, output))

    def last_chunks(self, latest: list[RequestOutput]) -> Iterable[Chunk]:
        if self._body.include_usage:
            yield self._envelope("chat.completion.chunk", [], latest)

    def whole(self, choices: list[RequestOutput]) -> dict[str, Any]:
        answer = self._envelope("chat.completion", [self._choice(*item) for item in enumerate(choices)], choices)
        if self._body.prompt_logprobs is not None:
            answer["prompt_logprobs"] = prompt_logprobs(choices[0].prompt_logprobs or (), self._tokenizer)
        return answer

    def _choice(self, index: int, output: RequestOutput) -> dict[str, Any]:
        choice = self._deltas[index]
        return {
            "index": index,
            "message": message(choice.read(output.text, is_last=True)),
            "logprobs": self._logprobs(output),
            "finish_reason": _finish_reason(choice, output),
        }

    def _chunk(
        self,
        index: int,
        delta: Delta,
        *,
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> Chunk:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return self._envelope("chat.completion.chunk", [choice])

    def _logprobs(self, output: RequestOutput) -> dict[str, Any] | None:
        """Of all tokens of the answer, those of calls and reasoning among them."""
        entries = visible(output)
        return chat_logprobs(entries, self._tokenizer) if entries else None

    def _envelope(
        self, kind: str, choices: list[dict[str, Any]], usage_of: list[RequestOutput] | None = None
    ) -> dict[str, Any]:
        envelope: dict[str, Any] = {
            "id": self._identity.id,
            "object": kind,
            "created": self._identity.created_s,
            "model": self._identity.model,
            "choices": choices,
        }
        if usage_of is not None:
            envelope["usage"] = usage(usage_of, self._body.n)
        return envelope


def _finish_reason(choice: Deltas, output: RequestOutput) -> str | None:
    """An answer that was cut is told so, calls or not."""
    return "tool_calls" if choice.has_calls and output.finish_reason is FinishReason.STOP else output.finish_reason

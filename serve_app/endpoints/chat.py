"""POST /v1/chat/completions."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from starlette.requests import Request
from starlette.types import ASGIApp

from engine.api import RequestOutput, Tokenizer
from serve_app.errors import bad_request
from serve_app.generation import respond
from serve_app.logprobs import chat_logprobs, prompt_logprobs, visible
from serve_app.schemas.chat import ChatRequest, Message
from serve_app.schemas.usage import usage
from serve_app.service import Identity, Service, check_context, service_of
from serve_app.sse import Chunk


class Conversation(Protocol):
    """What a chat template is given; of the bodies of several endpoints."""

    add_generation_prompt: bool
    continue_final_message: bool
    chat_template_kwargs: dict[str, Any]

    @property
    def messages(self) -> Sequence[Message] | None: ...


async def chat_completions(http: Request) -> ASGIApp:
    service = service_of(http)
    body = ChatRequest.parse(await http.body(), service.limits)
    service.check_model(body.model)
    stats = await service.fleet.ready()
    prompt, bad_words = await service.in_pool(_encoded, service.tokenizer, body)
    identity = Identity.new("chatcmpl", service.model)
    max_tokens = body.max_tokens_within(stats.max_model_len - len(prompt))
    check_context(len(prompt), max_tokens, stats.max_model_len, prompt_param="messages")
    sampling = body.sampling(
        max_tokens, logprobs=body.num_logprobs, prompt_logprobs=body.prompt_logprobs, bad_words=bad_words
    )
    return await respond(
        http,
        service.replicas,
        identity.requests([prompt], body.n, sampling, priority=body.priority, tenant=body.user),
        _ChatAnswer(service, body, identity),
        stream=body.stream,
        timeout_s=service.request_timeout_s,
        keep_alive_s=service.keep_alive_s,
    )


def _encoded(tokenizer: Tokenizer, body: ChatRequest) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """The prompt, and the bad words."""
    token_ids = tokenizer.encode(rendered(tokenizer, body), add_special_tokens=False)
    return body.truncated(token_ids), body.bad_word_ids(tokenizer)


def rendered(tokenizer: Tokenizer, body: Conversation) -> str:
    """The conversation as one text, its special tokens included."""
    if tokenizer.chat_template is None:
        raise bad_request("the model has no chat template: send the whole prompt to /v1/completions", "messages")
    return tokenizer.chat_template.render(
        [message.for_template() for message in body.messages or ()],
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        chat_template_kwargs=body.chat_template_kwargs,
    )


class _ChatAnswer:
    def __init__(self, service: Service, body: ChatRequest, identity: Identity) -> None:
        self._tokenizer = service.tokenizer
        self._body = body
        self._identity = identity
        self._begun: set[int] = set()                 # choices whose role has been sent

    def chunks(self, output: RequestOutput, index: int) -> Iterable[Chunk]:
        """The role first, then content, then the finish reason, each in chunks of its own."""
        if index not in self._begun:
            self._begun.add(index)
            yield self._chunk(index, {"role": "assistant", "content": ""})
        logprobs = self._logprobs(output)
        if output.text or logprobs:
            yield self._chunk(index, {"content": output.text}, logprobs=logprobs)
        if output.is_finished:
            yield self._chunk(index, {}, finish_reason=output.finish_reason)

    def last_chunks(self, latest: list[RequestOutput]) -> Iterable[Chunk]:
        if self._body.include_usage:
            yield self._envelope("chat.completion.chunk", [], latest)

    def whole(self, choices: list[RequestOutput]) -> dict[str, Any]:
        answer = self._envelope("chat.completion", [self._choice(*item) for item in enumerate(choices)], choices)
        if self._body.prompt_logprobs is not None:
            answer["prompt_logprobs"] = prompt_logprobs(choices[0].prompt_logprobs or (), self._tokenizer)
        return answer

    def _choice(self, index: int, output: RequestOutput) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": output.text, "refusal": None},
            "logprobs": self._logprobs(output),
            "finish_reason": output.finish_reason,
        }

    def _chunk(
        self,
        index: int,
        delta: dict[str, str],
        *,
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> Chunk:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return self._envelope("chat.completion.chunk", [choice])

    def _logprobs(self, output: RequestOutput) -> dict[str, Any] | None:
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

"""POST /v1/completions."""

from collections.abc import Iterable
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp

from engine.api import RequestOutput, Tokenizer
from serve_app.generation import respond
from serve_app.logprobs import CompletionLogprobs, visible
from serve_app.schemas.completions import CompletionRequest, Prompt
from serve_app.schemas.usage import usage
from serve_app.service import Identity, Service, check_context, service_of
from serve_app.sse import Chunk


async def completions(http: Request) -> ASGIApp:
    service = service_of(http)
    body = CompletionRequest.parse(await http.body())
    service.check_model(body.model)
    stats = await service.fleet.ready()
    prompts = await service.in_pool(_encoded, service.tokenizer, body.prompt)
    longest = max(map(len, prompts))
    check_context(longest, body.max_tokens, stats.max_model_len, prompt_param="prompt")
    identity = Identity.new("cmpl", service.model)
    sampling = body.sampling(
        body.max_tokens, logprobs=body.logprobs, prompt_logprobs=body.logprobs if body.echo else None
    )
    return await respond(
        http,
        service.replicas,
        identity.requests(prompts, body.n, sampling, priority=body.priority, tenant=body.user),
        _CompletionAnswer(service, body, identity),
        stream=body.stream,
        timeout_s=service.request_timeout_s,
    )


def _encoded(tokenizer: Tokenizer, prompts: list[Prompt]) -> list[tuple[int, ...]]:
    return [tuple(tokenizer.encode(prompt) if isinstance(prompt, str) else prompt) for prompt in prompts]


class _CompletionAnswer:
    def __init__(self, service: Service, body: CompletionRequest, identity: Identity) -> None:
        self._body = body
        self._identity = identity
        self._echoes = [_echo(service.tokenizer, prompt) for prompt in body.prompt] if body.echo else None
        hidden = service.tokenizer.special_token_ids if body.skip_special_tokens else frozenset()
        self._logprobs = [
            CompletionLogprobs(service.tokenizer, hidden) if body.logprobs is not None else None
            for _ in range(len(body.prompt) * body.n)
        ]
        self._begun: set[int] = set()                 # choices of which something has been sent

    def chunks(self, output: RequestOutput, index: int) -> Iterable[Chunk]:
        choice = self._choice(output, index)
        if choice["text"] or choice["logprobs"] or choice["finish_reason"] or choice.get("token_ids"):
            yield self._envelope([choice])

    def last_chunks(self, latest: list[RequestOutput]) -> Iterable[Chunk]:
        if self._body.include_usage:
            yield self._envelope([], latest)

    def whole(self, choices: list[RequestOutput]) -> dict[str, Any]:
        return self._envelope([self._choice(output, index) for index, output in enumerate(choices)], choices)

    def _choice(self, output: RequestOutput, index: int) -> dict[str, Any]:
        text, entries = output.text, visible(output)
        if self._echoes is not None and index not in self._begun:
            text = self._echoes[index // self._body.n] + text
            entries = (output.prompt_logprobs or ()) + entries
        self._begun.add(index)
        logprobs = self._logprobs[index]
        choice = {
            "index": index,
            "text": text,
            "logprobs": logprobs.piece(entries) if logprobs is not None and entries else None,
            "finish_reason": output.finish_reason,
        }
        return choice | {"token_ids": output.token_ids} if self._body.return_token_ids else choice

    def _envelope(self, choices: list[dict[str, Any]], usage_of: list[RequestOutput] | None = None) -> dict[str, Any]:
        envelope: dict[str, Any] = {
            "id": self._identity.id,
            "object": "text_completion",
            "created": self._identity.created_s,
            "model": self._identity.model,
            "choices": choices,
        }
        if usage_of is not None:
            envelope["usage"] = usage(usage_of, self._body.n)
        return envelope


def _echo(tokenizer: Tokenizer, prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else tokenizer.decode(prompt)

"""POST /v1/completions."""

from collections.abc import Iterable
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp

from engine.api import RequestOutput, Tokenizer, TokenLogprobs
from serve_app.generation import respond
from serve_app.logprobs import CompletionLogprobs, prompt_logprobs, visible
from serve_app.schemas.completions import CompletionRequest
from serve_app.schemas.usage import usage
from serve_app.service import Identity, Service, check_context, service_of
from serve_app.sse import Chunk


async def completions(http: Request) -> ASGIApp:
    service = service_of(http)
    body = CompletionRequest.parse(await http.body(), service.limits)
    service.check_model(body.model)
    stats = await service.ready("generate")
    prompts, bad_words = await service.in_pool(_encoded, service.tokenizer, body)
    longest = max(map(len, prompts))
    check_context(longest, body.max_tokens, stats.max_model_len, prompt_param="prompt")
    identity = Identity.new("cmpl", service.model)
    sampling = body.sampling(
        body.max_tokens, logprobs=body.num_logprobs, prompt_logprobs=body.num_prompt_logprobs, bad_words=bad_words
    )
    return await respond(
        http,
        service.replicas,
        identity.requests(prompts, body.num_candidates, sampling, priority=body.priority, tenant=body.tenant),
        _CompletionAnswer(service, body, identity, prompts),
        stream=body.stream,
        timeout_s=service.request_timeout_s,
        keep_alive_s=service.keep_alive_s,
    )


def _encoded(
    tokenizer: Tokenizer, body: CompletionRequest
) -> tuple[list[tuple[int, ...]], tuple[tuple[int, ...], ...]]:
    """The prompts, and the bad words."""
    prompts = [tokenizer.encode(prompt) if isinstance(prompt, str) else prompt for prompt in body.prompt]
    return [body.truncated(token_ids) for token_ids in prompts], body.bad_word_ids(tokenizer)


def _mean_logprob(output: RequestOutput) -> float:
    return sum(entry.logprob or 0.0 for entry in output.logprobs) / max(len(output.logprobs), 1)


class _CompletionAnswer:
    def __init__(
        self, service: Service, body: CompletionRequest, identity: Identity, prompts: list[tuple[int, ...]]
    ) -> None:
        self._tokenizer = service.tokenizer
        self._body = body
        self._identity = identity
        self._echoes = self._echoed(prompts) if body.echo else None
        self._logprobs = None if body.logprobs is None else [
            CompletionLogprobs(
                service.tokenizer, prompt, echo=self._echoes[i] if self._echoes is not None else None,
                skip_special_tokens=body.skip_special_tokens,
            )
            for i, prompt in enumerate(prompts)
            for _ in range(body.n)
        ]  # fmt: skip
        self._begun: set[int] = set()                 # choices of which something has been sent

    def chunks(self, output: RequestOutput, index: int) -> Iterable[Chunk]:
        choice = self._choice(output, index)
        if choice["text"] or choice["logprobs"] or choice["finish_reason"] or choice.get("token_ids"):
            yield self._envelope([choice])

    def last_chunks(self, latest: list[RequestOutput]) -> Iterable[Chunk]:
        if self._body.include_usage:
            yield self._envelope([], latest)

    def whole(self, choices: list[RequestOutput]) -> dict[str, Any]:
        shown = [self._choice(output, index) for index, output in enumerate(self._best(choices))]
        return self._envelope(shown, choices)

    def _best(self, candidates: list[RequestOutput]) -> list[RequestOutput]:
        """Of the candidates for each prompt the `n` whose tokens the model finds most likely, in the mean."""
        n, count = self._body.n, self._body.num_candidates
        if count == n:
            return candidates
        prompts = [candidates[first : first + count] for first in range(0, len(candidates), count)]
        return [best for some in prompts for best in sorted(some, key=_mean_logprob, reverse=True)[:n]]

    def _echoed(self, prompts: list[tuple[int, ...]]) -> list[str]:
        """Prompts as they were sent, unless they were cut."""
        cut = self._body.truncate_prompt_tokens is not None
        return [
            prompt if isinstance(prompt, str) and not cut
            else self._tokenizer.decode(token_ids, skip_special_tokens=self._body.skip_special_tokens)
            for prompt, token_ids in zip(self._body.prompt, prompts, strict=True)
        ]  # fmt: skip

    def _choice(self, output: RequestOutput, index: int) -> dict[str, Any]:
        text = output.text
        prompt_entries: tuple[TokenLogprobs, ...] = ()
        if self._echoes is not None and index not in self._begun:
            text = self._echoes[index // self._body.n] + text
            prompt_entries = output.prompt_logprobs or ()
        self._begun.add(index)
        choice = {
            "index": index,
            "text": text,
            "logprobs": self._pieces(index, prompt_entries, visible(output)),
            "finish_reason": output.finish_reason,
        }
        if self._body.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs or (), self._tokenizer)
        return choice | {"token_ids": output.token_ids} if self._body.return_token_ids else choice

    def _pieces(
        self, index: int, prompt_entries: tuple[TokenLogprobs, ...], entries: tuple[TokenLogprobs, ...]
    ) -> dict[str, Any] | None:
        if self._logprobs is None or not (prompt_entries or entries):
            return None
        return self._logprobs[index].piece(entries, prompt_entries)

    def _envelope(self, choices: list[dict[str, Any]], usage_of: list[RequestOutput] | None = None) -> dict[str, Any]:
        envelope: dict[str, Any] = {
            "id": self._identity.id,
            "object": "text_completion",
            "created": self._identity.created_s,
            "model": self._identity.model,
            "choices": choices,
        }
        if usage_of is not None:
            envelope["usage"] = usage(usage_of, self._body.num_candidates)
        return envelope

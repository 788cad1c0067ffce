"""Generation for one client request: what every endpoint that generates does between its request and its response."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing
from http import HTTPStatus
from itertools import chain
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from engine.api import EngineRequest, FinishReason, RequestOutput
from serve_app.disconnect import or_disconnect
from serve_app.errors import ApiError, unavailable
from serve_app.parcel import Outputs
from serve_app.replicas import Replicas
from serve_app.sse import Chunk, EventStream


class Answer(Protocol):
    """An endpoint's way from outputs to the response."""

    def chunks(self, output: RequestOutput, index: int) -> Iterable[Chunk]:
        """What a streaming client is sent for the next output of choice `index`."""

    def last_chunks(self, latest: list[RequestOutput]) -> Iterable[Chunk]:
        """What it is sent when all choices have ended; `latest` are the last outputs of each."""

    def whole(self, choices: list[RequestOutput]) -> dict[str, Any]:
        """The body that a client without streaming is sent; `choices` are whole outputs, in order of the requests."""


async def respond(
    http: Request, replicas: Replicas, requests: tuple[EngineRequest, ...], answer: Answer, *,
    stream: bool, timeout_s: float, keep_alive_s: float,
) -> ASGIApp:
    """The response to `http`. What is refused is raised here, not told within a 200.

    A stream begins with its first output or, if the prompt takes long, after `keep_alive_s`: refusals come at once.
    """
    if not stream:
        return JSONResponse(answer.whole(await collect(http, replicas, requests, timeout_s)))
    outputs = generate(replicas, requests, timeout_s)
    first = asyncio.create_task(_first(outputs))
    try:
        await or_disconnect(http.receive, _settled(first, keep_alive_s))
        if first.done():
            first.result()
    except BaseException:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await outputs.aclose()
        raise
    return EventStream(_chunks(first, outputs, requests, answer), keep_alive_s)


async def collect(
    http: Request, replicas: Replicas, requests: tuple[EngineRequest, ...], timeout_s: float
) -> list[RequestOutput]:
    """Whole outputs, in the order of `requests`. If the client leaves, they are aborted."""
    return await or_disconnect(http.receive, _fold(generate(replicas, requests, timeout_s), requests))


async def generate(
    replicas: Replicas, requests: tuple[EngineRequest, ...], timeout_s: float
) -> AsyncGenerator[Outputs, None]:
    """Outputs until every request has finished well; anything else is raised. Closing it aborts the requests."""
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    unfinished = {request.request_id for request in requests}
    async with aclosing(replicas.generate(requests)) as stream:
        while unfinished:
            try:
                async with asyncio.timeout_at(deadline_s):
                    outputs = await anext(stream)
            except StopAsyncIteration:
                raise unavailable("the model's replica ended the answer early; try again") from None
            except TimeoutError:
                raise ApiError(
                    HTTPStatus.GATEWAY_TIMEOUT, f"not finished within {timeout_s:g} s", code="request_timeout"
                ) from None
            for output in outputs:
                _raise_if_failed(output)
                if output.is_finished:
                    unfinished.discard(output.request_id)
            yield outputs


def _raise_if_failed(output: RequestOutput) -> None:
    if output.finish_reason is FinishReason.ABORT:
        raise unavailable("the server is shutting down and ended the answer; try again")
    if output.finish_reason is FinishReason.ERROR:
        raise ApiError(HTTPStatus.INTERNAL_SERVER_ERROR, output.error or "the request failed", code="request_failed")


async def _first(outputs: AsyncIterator[Outputs]) -> Outputs:
    return await anext(outputs)


async def _settled(task: "asyncio.Task[Outputs]", timeout_s: float) -> None:
    """Return when `task` is done, or after `timeout_s`; it runs on."""
    await asyncio.wait((task,), timeout=timeout_s)


async def _fold(outputs: AsyncGenerator[Outputs, None], requests: tuple[EngineRequest, ...]) -> list[RequestOutput]:
    parts: dict[str, list[RequestOutput]] = {request.request_id: [] for request in requests}
    async with aclosing(outputs):
        async for step in outputs:
            for output in step:
                parts[output.request_id].append(output)
    return [_merged(outputs) for outputs in parts.values()]


def _merged(parts: list[RequestOutput]) -> RequestOutput:
    """What `RequestOutput.then` gives for all of `parts`, without its quadratic cost."""
    return parts[-1]._replace(
        token_ids=tuple(chain.from_iterable(part.token_ids for part in parts)),
        text="".join(part.text for part in parts),
        logprobs=tuple(chain.from_iterable(part.logprobs for part in parts)),
        prompt_logprobs=next((part.prompt_logprobs for part in parts if part.prompt_logprobs is not None), None),
    )


async def _chunks(
    first: "asyncio.Task[Outputs]", rest: AsyncGenerator[Outputs, None], requests: tuple[EngineRequest, ...],
    answer: Answer,
) -> AsyncGenerator[list[Chunk], None]:  # fmt: skip
    """What a client is sent for each item that says something; last what it is sent in the end."""
    index = {request.request_id: i for i, request in enumerate(requests)}
    latest: dict[str, RequestOutput] = {}
    async with aclosing(_chain(first, rest)) as items:
        async for item in items:
            latest.update((output.request_id, output) for output in item)
            if chunks := [chunk for output in item for chunk in answer.chunks(output, index[output.request_id])]:
                yield chunks
    if chunks := list(answer.last_chunks([latest[request.request_id] for request in requests])):
        yield chunks


async def _chain(
    first: "asyncio.Task[Outputs]", rest: AsyncGenerator[Outputs, None]
) -> AsyncGenerator[Outputs, None]:
    try:
        yield await first
        async for step in rest:
            yield step
    finally:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)    # it must have left `rest`, which is closed next
        await rest.aclose()

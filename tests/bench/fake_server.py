"""A server that answers every completion with the same text, and the client of it."""

import json
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.test_utils import TestServer

from bench.http_client import HttpClient


def sse(*chunks):
    return "".join(f"data: {chunk if isinstance(chunk, str) else json.dumps(chunk)}\n\n" for chunk in chunks)


def completion_of(num_tokens):
    piece = {"choices": [{"index": 0, "text": "a", "finish_reason": None}]}
    return sse(*[piece] * num_tokens, {"choices": [], "usage": {"completion_tokens": num_tokens}}, "[DONE]")


@asynccontextmanager
async def server_of(stream=None, *, status=200, bodies=None, metrics=None):
    """The URL of a server that streams `stream`, or else exactly as many tokens as asked for."""

    async def complete(request):
        body = await request.json()
        if bodies is not None:
            bodies.append((body, request.headers.get("Authorization")))
        if status != 200:
            return web.json_response({"error": {"message": "no"}}, status=status)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        text = completion_of(body["max_tokens"]) if stream is None else stream
        for start in range(0, len(text), 7):             # a chunk of the transport is not an event
            await response.write(text[start : start + 7].encode())
        return response

    async def models(request):
        return web.json_response({"data": [{"id": "the-model"}]})

    async def version(request):
        return web.json_response({"version": "0.0"})

    async def exposition(request):
        return web.Response(text=metrics) if metrics is not None else web.Response(status=404)

    app = web.Application()
    app.router.add_post("/v1/completions", complete)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/version", version)
    app.router.add_get("/metrics", exposition)
    async with TestServer(app) as server:
        yield str(server.make_url("/"))


@asynccontextmanager
async def client_of(stream=None, *, api_key=None, **options):
    async with server_of(stream, **options) as url, HttpClient(url, api_key=api_key) as client:
        yield client

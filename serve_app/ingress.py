"""Ingress: the deployment that speaks HTTP. Routes, lifespan, and errors as answers; no engine logic."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import Any

from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from engine.api import ResolvedModel, Tokenizer, answer_format, load_tokenizer, resolve_model
from serve_app.config import AppConfig, read_chat_template
from serve_app.disconnect import ClientDisconnected
from serve_app.drain_gate import DrainGate, PassGate
from serve_app.errors import EXPECTED, ApiError, answer_for, to_api_error
from serve_app.fleet import Fleet
from serve_app.middleware import AccessLog, JsonOnly, LimitBody
from serve_app.operations import OPERATIONS
from serve_app.replicas import HandleReplicas, Replicas
from serve_app.service import Service

log = logging.getLogger(__name__)

CLIENT_CLOSED_REQUEST = 499           # nobody reads it but the access log
TEXT_THREADS = 4

class Ingress:
    """Any replica serves any request: it holds nothing but a tokenizer and what it last heard of the engines."""

    def __init__(self, config: AppConfig, llm_server: DeploymentHandle[Any]) -> None:
        self._config = config
        self._replicas = HandleReplicas(llm_server)
        self._gate = DrainGate()

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return build_asgi(self._config, self._replicas, self._gate)

    async def refuse_new_requests(self) -> None:
        self._gate.is_draining = True

    async def num_running_requests(self) -> int:
        return self._gate.num_running


class _OwnAnswers(Starlette):
    """Answers errors by the handlers that it is made with.

    Serve adds handlers for errors of its own once the application is there, a full queue among them. They answer in
    plain text, without Retry-After.
    """

    def add_exception_handler(self, exc_class_or_status_code: Any, handler: Any) -> None:
        log.debug("errors %s are answered by our own handlers", exc_class_or_status_code)


def build_asgi(config: AppConfig, replicas: Replicas, gate: DrainGate | None = None) -> Starlette:
    """The HTTP side of one application, over `replicas`."""
    return _OwnAnswers(
        routes=[
            Route(operation.path.replace("{model}", "{model:path}"), operation.handler, methods=[operation.method])
            for operation in OPERATIONS
        ],
        middleware=[
            Middleware(AccessLog),
            Middleware(PassGate, gate=gate or DrainGate()),
            Middleware(JsonOnly),
            Middleware(LimitBody, max_body_bytes=config.max_body_bytes),
        ],
        exception_handlers={
            **dict.fromkeys((*EXPECTED, Exception), _answer_error),
            HTTPException: _answer_http_exception,
            ClientDisconnected: _answer_nobody,
        },
        lifespan=partial(_lifespan, config, replicas),
    )


@asynccontextmanager
async def _lifespan(config: AppConfig, replicas: Replicas, app: Starlette) -> AsyncIterator[None]:
    resolved = await asyncio.to_thread(resolve_model, config.model)
    tokenizer = await asyncio.to_thread(_tokenizer, config, resolved)
    fleet = Fleet(replicas)
    app.state.operations = OPERATIONS
    with ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="text") as pool:
        app.state.service = Service(
            model=config.served_model_name or resolved.name,
            created_s=int(time.time()),
            tokenizer=tokenizer,
            answer_format=answer_format(
                tokenizer, tool_parser=config.tool_parser, reasoning_parser=config.reasoning_parser
            ),
            replicas=replicas,
            fleet=fleet,
            pool=pool,
            request_timeout_s=config.request_timeout_s,
            keep_alive_s=config.keep_alive_s,
            limits=config.limits,
        )
        polling = asyncio.create_task(fleet.poll_forever())
        yield
        polling.cancel()


def _tokenizer(config: AppConfig, resolved: ResolvedModel) -> Tokenizer:
    tokenizer = load_tokenizer(resolved.path, trust_remote_code=config.trust_remote_code)
    if config.chat_template is not None:
        tokenizer.use_chat_template(read_chat_template(config.chat_template))
    return tokenizer


async def _answer_error(http: Request, error: Exception) -> JSONResponse:
    if to_api_error(error) is None:
        log.error("%s %s failed", http.method, http.url.path, exc_info=error)
    answer = answer_for(error)
    return JSONResponse(answer.body(), answer.status, answer.headers)


async def _answer_http_exception(http: Request, error: Exception) -> JSONResponse:
    """What Starlette itself refuses: an unknown path, a wrong method."""
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.NOT_FOUND:
        message = f"unknown endpoint: {http.method} {http.url.path}"
    else:
        message = f"{http.method} {http.url.path}: {error.detail}"
    answer = ApiError(error.status_code, message)
    return JSONResponse(answer.body(), answer.status, error.headers)


async def _answer_nobody(http: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)

"""Service: what endpoints share. Immutable but for what the fleet last heard from the replicas."""

import asyncio
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from http import HTTPStatus
from typing import TypeVar

from starlette.requests import Request

from engine.api import AnswerFormat, ContextTooLong, EngineStats, GenerationRequest, SamplingParams, Task, Tokenizer
from serve_app.errors import ApiError, bad_request
from serve_app.fleet import Fleet
from serve_app.limits import RequestLimits
from serve_app.replicas import Replicas

Result = TypeVar("Result")

_ABILITIES: Mapping[Task, str] = {
    "generate": "generates text: /v1/chat/completions and /v1/completions are for it",
    "embed": "encodes texts: /v1/embeddings, /v1/score and /v1/rerank are for it",
    "score": "scores pairs of texts: /v1/score and /v1/rerank are for it",
}


@dataclass(frozen=True, slots=True)
class Service:
    """One model and the way to it."""

    model: str                                        # what clients call it
    created_s: int                                    # Unix time since when it is served
    tokenizer: Tokenizer
    answer_format: AnswerFormat
    replicas: Replicas
    fleet: Fleet
    pool: Executor                                    # for templates and tokenisers, which take their time
    request_timeout_s: float
    keep_alive_s: float                               # a stream is never silent for longer
    limits: RequestLimits

    async def in_pool(self, work: Callable[..., Result], *args: object) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self.pool, work, *args)

    async def ready(self, *tasks: Task) -> EngineStats:
        """Some healthy replica's stats, once there is one. Raises ApiError if its model does none of `tasks`."""
        stats = await self.fleet.ready()
        if stats.task not in tasks:
            raise bad_request(f"the model '{self.model}' {_ABILITIES[stats.task]}", "model", "unsupported_task")
        return stats

    def check_model(self, asked: str | None) -> None:
        """A client that names no model means the only one."""
        if asked and asked != self.model:
            raise ApiError(
                HTTPStatus.NOT_FOUND, f"the model '{asked}' does not exist; this server has '{self.model}'",
                "model", "model_not_found",
            )


def check_context(num_prompt_tokens: int, max_tokens: int, max_model_len: int, *, prompt_param: str) -> None:
    """The engine would end such a request early, as if the client had asked for less."""
    if num_prompt_tokens + max_tokens > max_model_len:
        raise ContextTooLong(
            f"the prompt has {num_prompt_tokens} tokens and max_tokens is {max_tokens}, "
            f"{num_prompt_tokens + max_tokens} together; the model's context is {max_model_len} tokens",
            param="max_tokens" if num_prompt_tokens < max_model_len else prompt_param,
        )


def service_of(http: Request) -> Service:
    service: Service = http.app.state.service
    return service


@dataclass(frozen=True, slots=True)
class Identity:
    """What names one answer, the same in all its chunks."""

    id: str
    created_s: int
    model: str

    @classmethod
    def new(cls, prefix: str, model: str) -> "Identity":
        return cls(f"{prefix}-{uuid.uuid4().hex}", int(time.time()), model)

    def requests(
        self, prompts: list[tuple[int, ...]], n: int, sampling: SamplingParams, *, priority: int = 0,
        tenant: str | None = None,
    ) -> tuple[GenerationRequest, ...]:  # fmt: skip
        """n choices for every prompt; all choices of the first prompt come first."""
        return tuple(
            GenerationRequest(
                f"{self.id}-{i * n + choice}", prompt, sampling, choice, priority=priority, tenant=tenant,
                first_choice_id=f"{self.id}-{i * n}" if choice else None,
            )
            for i, prompt in enumerate(prompts)
            for choice in range(n)
        )

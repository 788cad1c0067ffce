"""The interface of the engine: all that serve_app and bench see of it. Imports without torch."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from engine.config import EngineConfig, KVCacheConfig, SchedulerConfig, StrictModel, nearest, prepare_process
from engine.continuation import Continuation
from engine.embedding import EmbeddingRequest, EngineRequest
from engine.errors import (
    ConfigError,
    ContextTooLong,
    EngineDeadError,
    EngineError,
    InvalidRequest,
    QueueFull,
    RequestError,
    RequestTooLarge,
)
from engine.model.hub import ResolvedModel
from engine.model.hub import resolve as resolve_model
from engine.outbox import PauseFor
from engine.outputs import EngineStats, Histogram, RequestOutput, Task, TokenLogprobs
from engine.request import FinishReason, GenerationRequest
from engine.sampling.grammar.spec import GrammarSpec
from engine.sampling.params import SamplingParams
from engine.streams import RequestStreams
from engine.text.chat_template import check_chat_template
from engine.text.detokenizer import Detokenizer
from engine.text.parsers.answer import AnswerParser
from engine.text.parsers.events import Arguments, CallEnd, CallStart, Content, Reasoning
from engine.text.parsers.formats import REASONING_TAGS, TOOL_FORMATS, AnswerFormat, answer_format
from engine.text.parsers.syntax import Function
from engine.text.tokenizer import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from engine.model.description import ModelDescription

__all__ = [
    "REASONING_TAGS",
    "TOOL_FORMATS",
    "AnswerFormat",
    "AnswerParser",
    "Arguments",
    "CallEnd",
    "CallStart",
    "ConfigError",
    "Content",
    "ContextTooLong",
    "Continuation",
    "Detokenizer",
    "EmbeddingRequest",
    "Engine",
    "EngineConfig",
    "EngineDeadError",
    "EngineError",
    "EngineRequest",
    "EngineStats",
    "FinishReason",
    "Function",
    "GenerationRequest",
    "GrammarSpec",
    "Histogram",
    "InvalidRequest",
    "KVCacheConfig",
    "PreflightReport",
    "QueueFull",
    "Reasoning",
    "RequestError",
    "RequestOutput",
    "RequestStreams",
    "RequestTooLarge",
    "ResolvedModel",
    "SamplingParams",
    "SchedulerConfig",
    "StrictModel",
    "Task",
    "TokenLogprobs",
    "Tokenizer",
    "answer_format",
    "check_chat_template",
    "create_engine",
    "load_tokenizer",
    "nearest",
    "preflight",
    "resolve_model",
]


class Engine(Protocol):
    """One model on one device, serving many requests at once."""

    async def start(self) -> None:
        """Load the model and begin stepping. Raises ConfigError with the cause."""

    def generate(self, request: EngineRequest) -> AsyncIterator[RequestOutput]:
        """Outputs of `request`; consecutive ones come merged when the consumer is slower than the engine.

        Raises RequestError before the first output if the request is refused, EngineDeadError if the engine dies.
        Closing the iterator early aborts the request.
        """

    def steps(self, pause_for: PauseFor | None = None) -> AsyncIterator[tuple[RequestOutput, ...]]:
        """The outputs of ALL requests submitted with `submit`, as one multiplexed stream for one consumer.

        After an item of n requests, only first and last outputs of a request come within the next `pause_for(n)`
        seconds.

        An item holds at most one output per request; an empty one is a heartbeat, sent at least every 0.5 s.
        Raises EngineDeadError when the engine dies; ends after shutdown.
        """

    async def submit(self, request: EngineRequest) -> None:
        """Accept `request`; its outputs come through `steps`. Raises RequestError if it is refused."""

    async def embed(self, request: EmbeddingRequest) -> RequestOutput:
        """The one output of a text, or of a pair: its vector, or its score. Raises RequestError if it is refused."""

    async def abort(self, request_id: str) -> None:
        """End the request, wherever it is; its last output has FinishReason.ABORT. Unknown ids are ignored."""

    def stats(self) -> EngineStats:
        """A snapshot of cached values; never waits for a step."""

    async def check_health(self) -> None:
        """Raises EngineDeadError with the cause if the engine is dead or its step loop stuck."""

    async def drain(self) -> list[Continuation]:
        """Stop accepting, end what is unfinished, and return it as resumable values."""

    async def shutdown(self) -> None:
        """Stop the step thread and free the model; unfinished requests end with FinishReason.ABORT."""


def create_engine(config: EngineConfig) -> Engine:
    """An engine for `config`, not started yet. Imports torch only now."""
    prepare_process()
    from engine.async_engine import AsyncEngine

    return AsyncEngine(config)


@dataclass(frozen=True, slots=True)
class PreflightReport:
    """What an engine would be, found out before any weight is read. Sizes in bytes."""

    model_name: str
    device: str
    dtype: str
    max_model_len: int                     # tokens
    weights_bytes: int
    activation_bytes: int
    kv_bytes: int
    kv_capacity_tokens: int                # an encoder keeps no cache: 0
    task: Task = "generate"


def preflight(config: EngineConfig) -> PreflightReport:
    """Plan the engine of `config` without loading it. Raises ConfigError, naming the field. Imports torch only now."""
    from engine.build import describe_configured, plan_engine

    description = describe_configured(config)
    if not description.spec.causal:
        return _encoder_report(config, description)
    plan = plan_engine(config, description)
    return PreflightReport(
        model_name=plan.description.resolved.name,
        device=str(plan.device),
        dtype=plan.description.dtypes.weights,
        max_model_len=plan.description.max_model_len,
        weights_bytes=plan.memory.weight_bytes,
        activation_bytes=plan.memory.working_bytes,
        kv_bytes=plan.memory.kv_bytes,
        kv_capacity_tokens=plan.memory.capacity_tokens,
    )


def _encoder_report(config: EngineConfig, description: "ModelDescription") -> PreflightReport:
    from engine.encoding.build import plan_encoder

    plan = plan_encoder(config, description)
    return PreflightReport(
        model_name=description.resolved.name,
        device=str(description.device),
        dtype=description.dtypes.weights,
        max_model_len=description.max_model_len,
        weights_bytes=plan.weight_bytes,
        activation_bytes=plan.working_bytes,
        kv_bytes=0,
        kv_capacity_tokens=0,
        task=description.task,
    )

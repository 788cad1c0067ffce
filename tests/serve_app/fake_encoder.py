"""FakeEncoder: an engine of scripted vectors, or scores, without model or threads."""

import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

from engine.api import EmbeddingRequest, EngineStats, FinishReason, InvalidRequest, RequestOutput, Task
from tests.serve_app.fake_engine import FakeEngine

VOCAB_SIZE = 256
MAX_MODEL_LEN = 16


def sum_and_length(request: EmbeddingRequest) -> list[float]:
    return [float(sum(request.prompt_token_ids)), float(len(request.prompt_token_ids)), 1.0]


class FakeEncoder(FakeEngine):
    """Answers every text with what `vector` says of it."""

    def __init__(
        self, vector: Callable[[EmbeddingRequest], list[float]] = sum_and_length, *, task: Task = "embed"
    ) -> None:
        super().__init__()
        self.vector, self.task = vector, task

    def stats(self) -> EngineStats:
        size = 3 if self.task == "embed" else 0
        return replace(super().stats(), task=self.task, vector_size=size, max_model_len=MAX_MODEL_LEN)

    def _accept(self, request: Any) -> None:
        if max(request.prompt_token_ids) >= VOCAB_SIZE:
            raise InvalidRequest(f"token id {max(request.prompt_token_ids)} is not in [0, {VOCAB_SIZE})", param="input")
        self.requests.append(request)

    async def _answer(self, request: Any) -> AsyncIterator[RequestOutput]:
        vector = self.vector(request)[: request.dimensions]
        yield RequestOutput(
            request.request_id,
            finish_reason=FinishReason.STOP,
            num_prompt_tokens=len(request.prompt_token_ids),
            vector=struct.pack(f"<{len(vector)}f", *vector),
        )

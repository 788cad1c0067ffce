"""An EncoderCore around a runner without tensors."""

from collections.abc import Callable
from typing import Any

import numpy as np

from engine.embedding import EmbeddingRequest
from engine.encoding.core import EncoderCore, EncoderFacts
from engine.scheduling.policy import Limits
from tests.helpers import ManualClock


class SumRunner:
    """A text's vector: the sum of its ids, and their number."""

    def __init__(self) -> None:
        self.steps: list[list[str]] = []
        self.broken: Callable[[], None] = lambda: None

    def encode(self, requests: Any) -> Any:
        self.broken()
        self.steps.append([request.request_id for request in requests])
        return np.array(
            [
                [sum(request.prompt_token_ids) if 7 not in request.prompt_token_ids else np.nan,
                 len(request.prompt_token_ids)]
                for request in requests
            ],
            np.float64,
        )  # fmt: skip


def build_encoder_core(
    *, normalize: bool = False, max_num_waiting: int = 100, max_num_batched_tokens: int = 10, max_num_seqs: int = 4
) -> tuple[EncoderCore, SumRunner, ManualClock]:
    runner, clock = SumRunner(), ManualClock()
    facts = EncoderFacts(
        name="sums", task="embed", vocab_size=100, vector_size=2, normalize=normalize, max_model_len=8
    )
    core = EncoderCore(
        runner, facts, Limits(max_num_batched_tokens, max_num_seqs), max_num_waiting=max_num_waiting, clock=clock,
        check_every_step=True,
    )  # fmt: skip
    return core, runner, clock


def embedding(request_id: str, *token_ids: int, **fields: Any) -> EmbeddingRequest:
    return EmbeddingRequest(request_id, token_ids, **fields)

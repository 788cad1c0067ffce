"""EncoderRunner: requests become packed tensors, and tensors become vectors."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.embedding import EmbeddingRequest
from engine.encoding.pooling import Vectorise
from engine.model.encoder import Encoder
from engine.model.inputs import PackedTexts


class TextRunner(Protocol):
    def encode(self, requests: Sequence[EmbeddingRequest]) -> "NDArray[np.float64]":
        """[num_requests, vector_size], as the model gives them: neither cut nor normalised."""


class EncoderRunner:
    def __init__(self, encoder: Encoder, vectorise: Vectorise, device: torch.device) -> None:
        self._encoder, self._vectorise, self._device = encoder, vectorise, device

    @torch.inference_mode()
    def encode(self, requests: Sequence[EmbeddingRequest]) -> "NDArray[np.float64]":
        texts = self._packed(requests)
        vectors: NDArray[np.float64] = self._vectorise(self._encoder.forward(texts), texts).cpu().numpy()
        return vectors

    def warm_up(self) -> None:
        """Compile what is compiled at first use, before a client waits for it."""
        self.encode([EmbeddingRequest("warm-up", (0,)), EmbeddingRequest("warm-up", (0, 0))])

    def _packed(self, requests: Sequence[EmbeddingRequest]) -> PackedTexts:
        lengths = [len(request.prompt_token_ids) for request in requests]
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        token_ids, token_types = np.empty(starts[-1], np.int64), np.zeros(starts[-1], np.int64)
        has_types = self._encoder.spec.token_types > 1
        for request, start, end in zip(requests, starts, starts[1:], strict=False):
            token_ids[start:end] = request.prompt_token_ids
            if has_types and request.token_type_ids:
                token_types[start:end] = request.token_type_ids
        positions = np.arange(starts[-1], dtype=np.int64) - np.repeat(starts[:-1], lengths)

        def on_device(array: "NDArray[np.generic]") -> Tensor:
            return torch.from_numpy(array).to(self._device)

        return PackedTexts(
            input_ids=on_device(token_ids),
            positions=on_device(positions),
            token_type_ids=on_device(token_types),
            lengths=on_device(np.asarray(lengths, np.int64)),
            query_start_loc=on_device(starts),
            max_query_len=max(lengths),
        )

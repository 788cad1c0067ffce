"""Token embeddings, with what some families add: a scale, a projection, learned positions, token types, a norm."""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.model.layers.linear import Linear
from engine.model.layers.norm import Norm
from engine.model.spec import ModelSpec


class Tokens(Protocol):
    @property
    def input_ids(self) -> Tensor: ...       # int64 [num_tokens]

    @property
    def positions(self) -> Tensor: ...       # int64 [num_tokens]


class TypedTokens(Tokens, Protocol):
    @property
    def token_type_ids(self) -> Tensor: ...  # int64 [num_tokens]


class Embedding:
    def __init__(
        self,
        spec: ModelSpec,
        table: Tensor,                       # [vocab_size, embedding_width]
        scale: Tensor | None,                # in the activations' dtype, as it was in training
        projection: Linear | None,
        positions: Tensor | None,            # [learned_positions, hidden_size]
        dtype: torch.dtype,
    ) -> None:
        self._table, self._scale, self._projection, self._positions = table, scale, projection, positions
        self._offset, self._dtype = spec.learned_positions_offset, dtype

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self._table, self._positions) if tensor is not None) + (
            self._projection.nbytes if self._projection else 0
        )

    def __call__(self, batch: Tokens) -> Tensor:
        """[num_tokens, hidden_size]"""
        hidden = self._look_up(batch.input_ids)
        if self._scale is not None:
            hidden = hidden * self._scale
        if self._projection is not None:
            hidden = self._projection(hidden)
        if self._positions is not None:
            hidden = hidden + F.embedding(batch.positions + self._offset, self._positions).to(self._dtype)
        return hidden

    def _look_up(self, input_ids: Tensor) -> Tensor:
        if self._table.device.type == "cpu":
            from kernels.cpu.embedding import embedding

            return embedding(input_ids, self._table)
        return F.embedding(input_ids, self._table).to(self._dtype)


class EncoderEmbedding:
    """An encoder's: token types say which of two texts a token belongs to."""

    def __init__(self, tokens: Embedding, token_types: Tensor | None, norm: Norm | None) -> None:
        self._tokens, self._token_types, self._norm = tokens, token_types, norm   # types: [token_types, hidden_size]

    def __call__(self, batch: TypedTokens) -> Tensor:
        """[num_tokens, hidden_size]"""
        hidden = self._tokens(batch)
        if self._token_types is not None:
            hidden = hidden + F.embedding(batch.token_type_ids, self._token_types).to(hidden.dtype)
        return hidden if self._norm is None else self._norm(hidden)

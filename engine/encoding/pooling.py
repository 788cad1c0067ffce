"""From the hidden states of packed texts to one vector each, and to the form in which a vector leaves the engine."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from engine.model.encoder import Encoder
from engine.model.inputs import PackedTexts
from engine.model.layers.linear import Linear
from engine.model.sentence import Pooling

Vectorise = Callable[[Tensor, PackedTexts], Tensor]      # hidden states, texts -> float64 [num_texts, size]
Layer = tuple[Linear, Callable[[Tensor], Tensor]]        # a product and its activation


def pool(kind: Pooling, hidden: Tensor, texts: PackedTexts) -> Tensor:
    """float64 [num_texts, hidden_size] of hidden states [num_tokens, hidden_size].

    Sums run over a text's own rows, from first to last, so they do not depend on the texts beside it.
    """
    starts = texts.query_start_loc.long()
    match kind:
        case "cls":
            return hidden[starts[:-1]].double()
        case "last":
            return hidden[starts[1:] - 1].double()
        case "max":
            return torch.segment_reduce(hidden.double(), "max", lengths=texts.lengths)
        case "mean":
            return torch.segment_reduce(hidden.double(), "mean", lengths=texts.lengths)
        case "mean_sqrt_len":
            total = torch.segment_reduce(hidden.double(), "sum", lengths=texts.lengths)
            return total / texts.lengths.double().sqrt()[:, None]


class SentenceVectors:
    """The vector of a text: its poolings side by side, then the model's own layers on them."""

    def __init__(self, poolings: Sequence[Pooling], layers: Sequence[Layer], dtype: torch.dtype) -> None:
        self._poolings, self._layers, self._dtype = poolings, layers, dtype

    def __call__(self, hidden: Tensor, texts: PackedTexts) -> Tensor:
        vectors = torch.cat([pool(kind, hidden, texts) for kind in self._poolings], dim=-1)
        for product, activation in self._layers:
            vectors = activation(product(vectors.to(self._dtype))).double()
        return vectors


class PairScores:
    """The score of a pair of texts, a vector of one number."""

    def __init__(self, encoder: Encoder, dtype: torch.dtype) -> None:
        assert encoder.spec.score_head is not None and encoder.score is not None
        self._head, self._layers, self._dtype = encoder.spec.score_head, encoder.score, dtype

    def __call__(self, hidden: Tensor, texts: PackedTexts) -> Tensor:
        scores = self._layers(pool(self._head.pooling, hidden, texts).to(self._dtype)).double()
        return scores.sigmoid() if self._head.sigmoid else scores


def as_bytes(vector: "np.ndarray[tuple[int], np.dtype[np.float64]]", dimensions: int | None, normalize: bool) -> bytes:
    """float32, little-endian; cut to `dimensions` before it is brought to length 1, where its model does that."""
    vector = vector[:dimensions]
    length = np.sqrt(np.sum(vector * vector)) if normalize else 0.0
    return (vector / length if length > 0 else vector).astype("<f4").tobytes()

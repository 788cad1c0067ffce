"""The head of a cross-encoder: the pooled hidden states of a pair of texts become its score."""

from collections.abc import Callable

from torch import Tensor

from engine.model.layers.linear import Linear
from engine.model.layers.norm import Norm


class ScoreLayers:
    def __init__(
        self, dense: Linear, activation: Callable[[Tensor], Tensor], norm: Norm | None, output: Linear
    ) -> None:
        self._dense, self._activation, self._norm, self._output = dense, activation, norm, output

    def __call__(self, pooled: Tensor) -> Tensor:
        """[num_texts, hidden_size] -> raw scores [num_texts, 1]"""
        hidden = self._activation(self._dense(pooled))
        return self._output(hidden if self._norm is None else self._norm(hidden))

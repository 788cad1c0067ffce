"""The language-model head: hidden states to logits over the tokens that exist."""

from torch import Tensor

from engine.model.layers.linear import Linear
from engine.model.spec import ModelSpec


class Head:
    """Its product holds the rows of real tokens only, so that padding rows of the vocabulary cannot be sampled."""

    def __init__(self, spec: ModelSpec, product: Linear, projection: Linear | None) -> None:
        self._product, self._projection = product, projection
        self._scale, self._softcap = spec.logit_scale, spec.logit_softcap

    @property
    def nbytes(self) -> int:
        return self._product.nbytes + (self._projection.nbytes if self._projection else 0)

    def __call__(self, hidden: Tensor) -> Tensor:
        """float32 [rows, num_valid_tokens]"""
        if self._projection is not None:
            hidden = self._projection(hidden)
        logits = self._product(hidden).float()
        if self._scale != 1.0:
            logits = logits * self._scale
        if self._softcap:
            logits = (logits / self._softcap).tanh() * self._softcap
        return logits

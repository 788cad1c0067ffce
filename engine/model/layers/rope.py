"""The rows of cosines and sines that a step's tokens are rotated by."""

import torch
from torch import Tensor

from engine.model.spec import RopeSpec


class Rotary:
    """One RopeSpec on a device: a table made once or, where the length matters, rows made for each step.

    Angles are float32 as in transformers; their functions are computed in float64, so that the vector and the scalar
    code of a CPU round to the same float32 whatever the number of rows.
    """

    def __init__(self, spec: RopeSpec, max_model_len: int, device: torch.device) -> None:
        self._spec = spec
        self._inv_freq = torch.tensor(spec.inv_freq, dtype=torch.float32, device=device)
        if spec.long_inv_freq is not None:
            self._long_inv_freq = torch.tensor(spec.long_inv_freq, dtype=torch.float32, device=device)
        self._table: Tensor | None = None
        if not spec.depends_on_length:
            positions = torch.arange(max_model_len, device=device)
            self._table = self._cos_sin(positions, self._inv_freq)

    def rows(self, positions: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(cos_sin [rows, rotary_dim], the row of each token [num_tokens])"""
        if self._table is not None:
            return self._table, positions
        cos_sin = self._cos_sin(positions, self._inv_freq_at(lengths))
        return cos_sin, torch.arange(len(positions), device=positions.device)

    def _cos_sin(self, positions: Tensor, inv_freq: Tensor) -> Tensor:
        angles = (positions.float()[:, None] * inv_freq).double()
        return (torch.cat((angles.cos(), angles.sin()), dim=-1) * self._spec.attention_factor).float()

    def _inv_freq_at(self, lengths: Tensor) -> Tensor:
        """[num_tokens, rotary_dim / 2]"""
        spec = self._spec
        assert spec.original_length is not None
        beyond = (lengths > spec.original_length)[:, None]
        if spec.long_inv_freq is not None:
            return torch.where(beyond, self._long_inv_freq, self._inv_freq)
        assert spec.ntk_base is not None and spec.ntk_factor is not None
        stretch = spec.ntk_factor * lengths.double() / spec.original_length - (spec.ntk_factor - 1)
        base = spec.ntk_base * stretch.clamp(min=1.0) ** (spec.rotary_dim / (spec.rotary_dim - 2))
        exponents = torch.arange(0, spec.rotary_dim, 2, dtype=torch.float64, device=lengths.device) / spec.rotary_dim
        return torch.where(beyond, (base[:, None] ** -exponents).float(), self._inv_freq)

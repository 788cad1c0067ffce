"""Draws one token per row of logits, each from its own request's parameters and random key."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine.request import GenerationRequest
from engine.sampling.typical import keep_typical

NON_FINITE = "no token can be drawn for this request: its logits are not finite, or every token is forbidden"


@dataclass(frozen=True, slots=True)
class _Parameters:
    """The parameters of a batch as tensors, one entry a row."""

    requests: tuple[GenerationRequest, ...]
    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seeds: torch.Tensor
    choices: torch.Tensor
    typical: tuple[int, ...]               # rows that keep their typical set only, before top_k, top_p and min_p


class Sampler:
    """Keeps the parameter tensors of the last batch: while the same requests decode, only positions change."""

    def __init__(self) -> None:
        self._parameters: _Parameters | None = None

    def sample(
        self,
        logits: torch.Tensor,
        requests: Sequence[GenerationRequest],
        positions: Sequence[int] | npt.NDArray[np.integer[Any]],
    ) -> torch.Tensor:
        """int64 [num_rows]: a token id per row of `logits` [num_rows, vocab_size] float32; -1 where it has none.

        `positions` count the tokens before the one drawn. -inf forbids a token; a row that holds NaN or +inf, or
        nothing but -inf, has no distribution: the request fails for NON_FINITE, its neighbours do not.
        """
        from kernels.ops import sample

        parameters = self._parameters_for(tuple(requests), logits)
        for place in parameters.typical:
            sampling = requests[place].sampling
            keep_typical(logits[place], sampling.temperature, sampling.typical_p)
        token_ids = sample(
            logits,
            parameters.temperature,
            parameters.top_k,
            parameters.top_p,
            parameters.min_p,
            parameters.seeds,
            parameters.choices,
            torch.from_numpy(np.asarray(positions, np.int32)).to(logits.device, non_blocking=True),
        )
        finite = logits.amax(dim=1).isfinite()     # NaN outranks all, -inf is the largest only where it is alone
        return torch.where(finite, token_ids, -1)

    def _parameters_for(self, requests: tuple[GenerationRequest, ...], logits: torch.Tensor) -> _Parameters:
        known = self._parameters
        if known is None or known.temperature.device != logits.device or known.requests != requests:
            known = self._parameters = _build_parameters(requests, logits)
        return known


def _build_parameters(requests: tuple[GenerationRequest, ...], logits: torch.Tensor) -> _Parameters:
    sampling = [request.sampling for request in requests]
    vocab_size = logits.shape[1]

    def tensor(values: list[float] | list[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype).to(logits.device, non_blocking=True)

    return _Parameters(
        requests,
        temperature=tensor([params.temperature for params in sampling], torch.float32),
        top_k=tensor([min(params.top_k, vocab_size) for params in sampling], torch.int32),
        top_p=tensor([params.top_p for params in sampling], torch.float32),
        min_p=tensor([params.min_p for params in sampling], torch.float32),
        seeds=tensor([_signed64(params.seed) for params in sampling], torch.int64),
        choices=tensor([request.choice for request in requests], torch.int32),
        typical=tuple(
            place for place, params in enumerate(sampling) if params.typical_p < 1 and not params.is_greedy
        ),
    )


def _signed64(seed: int) -> int:
    """The low 64 bits of `seed` as a signed number, which is what a tensor can hold."""
    return (seed + 2**63) % 2**64 - 2**63

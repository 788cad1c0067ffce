"""Locally typical sampling (Meister et al., TACL 2023): tokens as surprising as the distribution is on average."""

import torch
from torch import Tensor


def keep_typical(row: Tensor, temperature: float, typical_p: float) -> None:
    """Sets to -inf, in place, what is outside the smallest typical set of mass `typical_p`.

    `row` is float32 [vocab_size], its distribution that at `temperature`.

    Distances are compared, not ranks, so that equal ones stay or go together. One row at a time: sums over several
    might be cut, and round, otherwise.
    """
    logprobs = torch.log_softmax(row / temperature, dim=-1)
    probs = logprobs.exp()
    entropy = -torch.where(probs > 0, probs * logprobs, 0.0).sum()
    distance = (-logprobs - entropy).abs()
    nearest, order = torch.sort(distance, stable=True)
    num_before = int((probs[order].cumsum(0) < typical_p).sum())
    row.masked_fill_(distance > nearest[min(num_before, len(row) - 1)], float("-inf"))

"""Log probabilities of tokens, from the model's own logits: before temperature, penalties, bias and masks.

A row's values do not depend on the other rows. Ties go to the lower token id, in ranks and in alternatives.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from engine.outputs import TokenLogprobs

_ROWS_AT_ONCE = 64                                 # bounds the float32 [rows, vocab_size] that prompts would need


def token_logprobs(
    logits: torch.Tensor, token_ids: Sequence[int], num_alternatives: Sequence[int]
) -> list[TokenLogprobs]:
    """For each row of `logits` [num_rows, vocab_size] float32: its token, and its most likely alternatives.

    Penalties change logits in place: pass a copy of the rows taken before them.
    """
    return [
        entry
        for start in range(0, len(token_ids), _ROWS_AT_ONCE)
        for entry in _chunk_logprobs(
            logits[start:start + _ROWS_AT_ONCE],
            token_ids[start:start + _ROWS_AT_ONCE],
            num_alternatives[start:start + _ROWS_AT_ONCE],
        )
    ]


def prompt_logprobs(
    hidden: torch.Tensor,
    following_token_ids: Sequence[int],
    num_alternatives: int,
    compute_logits: Callable[[torch.Tensor], torch.Tensor],
) -> tuple[TokenLogprobs, ...]:
    """For each row of `hidden` [num_rows, hidden_size], the token that follows it in the prompt.

    Logits are computed for a few rows at a time: those of a long prompt would not fit in memory.
    """
    entries: list[TokenLogprobs] = []
    for start in range(0, len(following_token_ids), _ROWS_AT_ONCE):
        token_ids = following_token_ids[start:start + _ROWS_AT_ONCE]
        logits = compute_logits(hidden[start:start + _ROWS_AT_ONCE])
        entries += _chunk_logprobs(logits, token_ids, [num_alternatives] * len(token_ids))
    return tuple(entries)


def _chunk_logprobs(
    logits: torch.Tensor, token_ids: Sequence[int], num_alternatives: Sequence[int]
) -> list[TokenLogprobs]:
    logits = logits.contiguous()
    logprobs = torch.log_softmax(logits, dim=-1)
    chosen = torch.tensor(token_ids, device=logits.device).unsqueeze(1)            # [num_rows, 1]
    chosen_logits = logits.gather(1, chosen)
    ids = torch.arange(logits.shape[1], device=logits.device)
    # Logits rather than logprobs are compared: rounding may make two of those equal.
    before = (logits > chosen_logits) | ((logits == chosen_logits) & (ids < chosen))
    ranks: list[int] = (before.sum(dim=1) + 1).tolist()
    values: list[float] = logprobs.gather(1, chosen).squeeze(1).tolist()
    tops = _top(logits, logprobs, num_alternatives)
    return [
        TokenLogprobs(token_id, value, rank, top)
        for token_id, value, rank, top in zip(token_ids, values, ranks, tops, strict=True)
    ]


def _top(
    logits: torch.Tensor, logprobs: torch.Tensor, num_alternatives: Sequence[int]
) -> list[tuple[tuple[int, float], ...]]:
    """The most likely tokens of each row, best first, without those that cannot occur."""
    most = min(max(num_alternatives), logits.shape[1])
    if most == 0:
        return [()] * len(num_alternatives)
    # topk may pick any of several equal ones: it only tells the least logit that belongs, all at or above are sorted.
    least = torch.topk(logits, most, dim=1).values[:, -1:]
    rows, ids = ((logits >= least) & (logits > float("-inf"))).nonzero(as_tuple=True)
    values = logprobs[rows, ids].tolist()
    order = np.lexsort([keys.cpu().numpy() for keys in (ids, -logits[rows, ids], rows)])    # last key first
    ends = np.cumsum(np.bincount(rows.cpu().numpy(), minlength=len(num_alternatives)))
    tokens = ids.tolist()
    return [
        tuple((tokens[index], values[index]) for index in order[start:end][:count].tolist())
        for start, end, count in zip([0, *ends[:-1]], ends, num_alternatives, strict=True)
    ]

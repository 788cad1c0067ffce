"""The twins of the attention ops."""

import math
from itertools import pairwise

import torch
from torch import Tensor


def visible_keys(query_positions: Tensor, num_keys: int, causal: bool, window: int) -> Tensor:
    """Which keys each query sees: bool [num_queries, num_keys].

    A window keeps keys with q - k < window and, where the future is seen at all, those with k - q < window.
    """
    distance = query_positions[:, None] - torch.arange(num_keys, device=query_positions.device)[None, :]
    seen = torch.ones_like(distance, dtype=torch.bool)
    if causal:
        seen &= distance >= 0
    if window > 0:
        seen &= distance.abs() < window
    return seen


def attend(
    query: Tensor,  # [q_len, num_query_heads, head_dim]: the last q_len tokens
    keys: Tensor,  # float64 [seq_len, num_kv_heads, head_dim]
    values: Tensor,
    scale: float,
    causal: bool,
    window: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    sinks: Tensor | None,
) -> Tensor:
    """Attention of one request's tokens over its keys, like `query`.

    Scores go through scale, softcap (cap · tanh(s / cap)), mask and ALiBi (slope · (k - q)), in that order. A sink
    is a score per head that takes part in the denominator only. A row that sees no key is exactly 0.
    """
    q_len, num_query_heads, _ = query.shape
    seq_len, num_kv_heads, _ = keys.shape
    if q_len == 0 or seq_len == 0:
        return torch.zeros_like(query)
    group = num_query_heads // num_kv_heads
    keys, values = (x.transpose(0, 1).repeat_interleave(group, 0) for x in (keys, values))  # [heads, seq_len, D]
    positions = torch.arange(seq_len, device=query.device)
    q_positions = torch.arange(seq_len - q_len, seq_len, device=query.device)
    scores = query.double().transpose(0, 1) @ keys.transpose(1, 2) * scale
    if softcap > 0:
        scores = softcap * torch.tanh(scores / softcap)
    if alibi_slopes is not None:
        distance = (positions[None, :] - q_positions[:, None]).double()
        scores = scores + alibi_slopes.double()[:, None, None] * distance
    seen = visible_keys(q_positions, seq_len, causal, window)
    scores = scores.masked_fill(~seen, -math.inf)
    if sinks is not None:
        column = sinks.double()[:, None, None].expand(-1, q_len, 1)
        weights = torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]
    else:
        weights = torch.softmax(scores, dim=-1)
    weights = weights.masked_fill(~seen.any(dim=1)[None, :, None], 0.0)  # softmax of an empty row is NaN
    return (weights @ values).transpose(0, 1).to(query.dtype)


def paged_attention(
    query: Tensor,  # [num_tokens, num_query_heads, head_dim]
    key_cache: Tensor,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_cache: Tensor,
    block_table: Tensor,  # [num_requests, max_blocks]
    seq_lens: Tensor,  # [num_requests]
    query_start_loc: Tensor,  # [num_requests + 1]
    *,
    scale: float,
    max_query_len: int,
    causal: bool = True,
    window: int = 0,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> Tensor:
    """Attention of each request's new tokens over its paged context.

    Query token j of request r sits at position seq_lens[r] - q_len[r] + j. See `attend` for the arithmetic.
    """
    out = torch.zeros_like(query)
    block_size = key_cache.shape[1]
    starts = query_start_loc.tolist()
    for r, seq_len in enumerate(seq_lens.tolist()):
        rows = slice(starts[r], starts[r + 1])
        positions = torch.arange(seq_len, device=query.device)
        blocks, offsets = block_table[r].long()[positions // block_size], positions % block_size
        keys, values = key_cache[blocks, offsets].double() * k_scale, value_cache[blocks, offsets].double() * v_scale
        out[rows] = attend(query[rows], keys, values, scale, causal, window, softcap, alibi_slopes, sinks)
    return out


def varlen_attention(
    query: Tensor,  # [num_tokens, num_query_heads, head_dim]
    key: Tensor,  # [num_tokens, num_kv_heads, head_dim]
    value: Tensor,
    query_start_loc: Tensor,  # [num_requests + 1]
    *,
    scale: float,
    max_query_len: int,
    causal: bool = True,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of each request's tokens over themselves: keys and values are packed like the queries, uncached."""
    out = torch.zeros_like(query)
    for first, end in pairwise(query_start_loc.tolist()):
        keys, values = key[first:end].double(), value[first:end].double()
        out[first:end] = attend(query[first:end], keys, values, scale, causal, window, softcap, None, sinks)
    return out

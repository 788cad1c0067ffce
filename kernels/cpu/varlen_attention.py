"""Attention of packed requests over themselves on a CPU: paged attention, as packed keys are a cache of 1-token blocks.

The block of a token is its place in the batch, so a request's row of the block table counts up from its first token.
A row's bits are those of paged attention over the same keys, whatever shares the batch.
"""

import torch
from torch import Tensor

from kernels.cpu.paged_attention import paged_attention


def varlen_attention(
    query: Tensor,  # [num_tokens, num_query_heads, head_dim]
    key: Tensor,  # [num_tokens, num_kv_heads, head_dim]
    value: Tensor,
    query_start_loc: Tensor,  # int32 [num_requests + 1]
    *,
    scale: float,
    max_query_len: int,
    causal: bool = True,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of each request's tokens over themselves; see `kernels.reference.varlen_attention`."""
    block_table = query_start_loc[:-1, None] + torch.arange(max_query_len, dtype=torch.int32)
    return paged_attention(
        query, key.contiguous().unsqueeze(1), value.contiguous().unsqueeze(1), block_table, query_start_loc.diff(),
        query_start_loc, scale=scale, max_query_len=max_query_len, causal=causal, window=window, softcap=softcap,
        sinks=sinks,
    )  # fmt: skip

"""Attention of packed requests over themselves, without a cache: encoders, and prompts that nothing precedes.

out[t, h] = softmax(q[t, h] · Kᵀ · scale) · V over the keys of t's own request that t sees.

grid      (query blocks of all requests, num_kv_heads); a block finds its request by binary search
tile      extend_rows rows (tokens x GROUP heads) against extend_tile keys; Q in registers, K and V through shared
          memory, extend_stages deep; the loop is paged attention's, over keys that lie one after another

          request 0   request 1        rows of one program
          [0 ....... | .......... ]    |<- BLOCK_Q tokens ->|   the last block of a request is masked, not shared

moves     4 · num_query_heads · head_dim · Σ visible keys FLOP: compute bound; Q, K, V and the output pass once, K and
          V again for each block of rows, from L2
fixed     a block holds tokens of one request, counted from its start: a row's result does not depend on the batch
idea      flash-attention 2 (Dao, 2023), its varlen form
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton import configs
from kernels.triton.attention_tile import attend, find_request, load_rows, start_state, store_rows
from kernels.triton.paged_attention import LOG2E, split_head_dim


@triton.jit(do_not_specialize=["num_requests", "window"])
def _varlen_kernel(
    out, query, key, value, query_start_loc, sinks,
    num_requests, window, score_scale, softcap,
    stride_q_token, stride_q_head, stride_kv_token, stride_kv_head, stride_out_token,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SINKS: tl.constexpr,
    GROUP: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, D: tl.constexpr, D0: tl.constexpr, D1: tl.constexpr,
):  # fmt: skip
    BLOCK_Q: tl.constexpr = ROWS // GROUP
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # latest first: under a causal mask it has the most to do
    kv_head = tl.program_id(1)
    request = find_request(query_start_loc, block, num_requests, BLOCK_Q)
    start = tl.load(query_start_loc + request)
    length = tl.load(query_start_loc + request + 1) - start
    block_first = (block - (start // BLOCK_Q + request)) * BLOCK_Q  # this block's first token in its request
    if block_first >= length:
        return

    rows = tl.arange(0, ROWS)
    tokens, heads = block_first + rows // GROUP, kv_head * GROUP + rows % GROUP
    valid = (rows < BLOCK_Q * GROUP) & (tokens < length)
    q_rows = (start + tokens).to(tl.int64) * stride_q_token + heads.to(tl.int64) * stride_q_head
    q0 = load_rows(query, q_rows, valid, 0, D0, D, True)
    q1 = q0
    if D1 > 0:
        q1 = load_rows(query, q_rows, valid, D0, D1, D, True)

    first_key = start.to(tl.int64) * stride_kv_token + kv_head.to(tl.int64) * stride_kv_head
    row_max, row_sum = start_state(sinks, heads, valid, True, softcap, ROWS, SINKS)
    acc0, acc1, row_max, row_sum = attend(
        row_max, row_sum, q0, q1, tokens, block_first, tl.minimum(block_first + BLOCK_Q, length) - 1, row_max,
        key + first_key, value + first_key, query_start_loc, stride_kv_token, 0, length, window, score_scale, softcap,
        CAUSAL, WINDOW, SOFTCAP, False, 0, TILE, D, D0, D1, False,  # no ALiBi, so its slopes are not read; PAGE 0
    )  # fmt: skip

    weight = (1.0 / tl.where(row_sum > 0.0, row_sum, 1.0))[:, None]  # acc of a row that saw no key is exactly 0
    out_rows = (start + tokens).to(tl.int64) * stride_out_token + heads * D
    store_rows(out, out_rows, valid, acc0 * weight, 0, D0, D)
    if D1 > 0:
        store_rows(out, out_rows, valid, acc1 * weight, D0, D1, D)


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
    config: configs.AttentionConfig | None = None,
) -> Tensor:
    num_tokens, num_query_heads, head_dim = query.shape
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    num_requests = query_start_loc.shape[0] - 1
    if num_tokens == 0 or num_requests == 0:
        return out
    if key.stride() != value.stride():  # one walk over both: K and V share their offsets
        key, value = key.contiguous(), value.contiguous()
    scores = configs.Scores.of(window, softcap, alibi=False)
    config = config or configs.attention(configs.architecture(query.device), head_dim, query.dtype, scores)
    first, rest = split_head_dim(head_dim)
    group = num_query_heads // key.shape[1]
    rows = max(config.extend_rows, triton.next_power_of_2(group))
    blocks = num_tokens // (rows // group) + num_requests
    score_scale = scale * LOG2E * (2.0 / softcap if softcap > 0 else 1.0)  # tanh wants 2 · log2(e) · s / cap
    _varlen_kernel[(blocks, key.shape[1])](
        out, query, key, value, query_start_loc, sinks, num_requests, window, score_scale, softcap * LOG2E,
        query.stride(0), query.stride(1), key.stride(0), key.stride(1), out.stride(0),
        CAUSAL=causal, WINDOW=window > 0, SOFTCAP=softcap > 0, SINKS=sinks is not None, GROUP=group, ROWS=rows,
        TILE=config.extend_tile, D=head_dim, D0=first, D1=rest, num_warps=config.extend_warps,
        num_stages=config.extend_stages, enable_fp_fusion=True, **configs.at_most(config.extend_registers),
        **dict(config.backend),
    )  # fmt: skip
    return out

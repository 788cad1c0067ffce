r"""Attention over a paged KV cache: one host function, two compiled specialisations.

out[t, h] = softmax(q[t, h] · Kᵀ · scale) · V over the cached keys that token t of its request sees.

extend    queries longer than short_query: chunks of a prompt
  grid    (query blocks of all requests, num_kv_heads); a block finds its request by binary search, latest first
  tile    extend_rows rows (tokens x GROUP heads) against extend_tile keys; Q in registers, K and V through shared
          memory, extend_stages deep

            keys ->         page 7   page 2   page 9 ...      rows: token 0 head 0, token 0 head 1, ..
            BLOCK_Q tokens |::::::::|::::::::|::::\            whole tiles without masks, then the diagonal with
            x GROUP heads  |::::::::|::::::::|::::::\

  moves   4 · num_query_heads · head_dim · Σ visible keys FLOP: compute bound; each block of rows reads the visible
          2 · head_dim · bytes_per_element a key once
decode    one token, or a few to verify
  grid    (requests x row blocks, num_kv_heads, splits)
  tile    16 rows (or GROUP, padded to a power of two, where larger) against decode_tile keys

            16 rows        |:::: split 0 ::::|:::: split 1 ::::|:: split 2     splits of split_tokens keys, one program
            (GROUP heads)       max, sum, acc     max, sum, acc     ..         each

  reduces each split writes (max, sum, acc) in float32; `_reduce_splits` merges them by log-sum-exp
  moves   2 · seq_len · head_dim · bytes_per_element per (request, KV head): memory bound; floor = bytes / bandwidth;
          4 · GROUP · head_dim FLOP a key, on rows that are there in any case
fixed     which specialisation, and how a context is split, depend on the request's own lengths only: a row's result
          is the same to the bit whatever shares its batch
idea      flash-attention 2 (Dao, 2023); flash-decoding (Dao et al., 2023); paging (Kwon et al., SOSP 2023)
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton import configs
from kernels.triton.attention_tile import attend, find_request, load_rows, start_state, store_rows

LOG2E = math.log2(math.e)


@triton.jit
def _slopes(alibi_slopes, heads, valid, ROWS: tl.constexpr, ALIBI: tl.constexpr):
    if ALIBI:
        return tl.load(alibi_slopes + heads, mask=valid, other=0.0) * 1.4426950408889634
    return tl.zeros([ROWS], tl.float32)


@triton.jit(do_not_specialize=["num_requests", "window"])
def _extend_kernel(
    out, query, key_cache, value_cache, block_table, seq_lens, query_start_loc, alibi_slopes, sinks,
    num_requests, window, score_scale, softcap, v_scale,
    stride_q_token, stride_q_head, stride_out_token, stride_slot, stride_table,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, SINKS: tl.constexpr,
    GROUP: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
    D: tl.constexpr, D0: tl.constexpr, D1: tl.constexpr, SHORT_QUERY: tl.constexpr,
):  # fmt: skip
    BLOCK_Q: tl.constexpr = ROWS // GROUP
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # latest first: under a causal mask it has the most to do
    kv_head = tl.program_id(1)
    request = find_request(query_start_loc, block, num_requests, BLOCK_Q)
    q_start = tl.load(query_start_loc + request)
    q_len = tl.load(query_start_loc + request + 1) - q_start
    block_first = (block - (q_start // BLOCK_Q + request)) * BLOCK_Q  # this block's first token in its request
    if (q_len <= SHORT_QUERY) | (block_first >= q_len):
        return
    seq_len = tl.load(seq_lens + request)

    rows = tl.arange(0, ROWS)
    tokens, heads = block_first + rows // GROUP, kv_head * GROUP + rows % GROUP
    valid = (rows < BLOCK_Q * GROUP) & (tokens < q_len)
    q_rows = (q_start + tokens).to(tl.int64) * stride_q_token + heads * stride_q_head
    q0 = load_rows(query, q_rows, valid, 0, D0, D, True)
    q1 = q0
    if D1 > 0:
        q1 = load_rows(query, q_rows, valid, D0, D1, D, True)

    q_first = seq_len - q_len + block_first
    q_last = tl.minimum(q_first + BLOCK_Q, seq_len) - 1
    row_max, row_sum = start_state(sinks, heads, valid, True, softcap, ROWS, SINKS)
    acc0, acc1, row_max, row_sum = attend(
        row_max, row_sum, q0, q1, seq_len - q_len + tokens, q_first, q_last,
        _slopes(alibi_slopes, heads, valid, ROWS, ALIBI),
        key_cache + kv_head * D, value_cache + kv_head * D, block_table + request.to(tl.int64) * stride_table,
        stride_slot, 0, seq_len, window, score_scale, softcap,
        CAUSAL, WINDOW, SOFTCAP, ALIBI, PAGE, TILE, D, D0, D1, False,
    )  # fmt: skip

    weight = (v_scale / tl.where(row_sum > 0.0, row_sum, 1.0))[:, None]  # acc of a row that saw no key is exactly 0
    out_rows = (q_start + tokens).to(tl.int64) * stride_out_token + heads * D
    store_rows(out, out_rows, valid, acc0 * weight, 0, D0, D)
    if D1 > 0:
        store_rows(out, out_rows, valid, acc1 * weight, D0, D1, D)


@triton.jit(do_not_specialize=["window", "row_blocks", "token_slots"])
def _decode_kernel(
    out, partial_acc, partial_max, partial_sum,
    query, key_cache, value_cache, block_table, seq_lens, query_start_loc, alibi_slopes, sinks,
    row_blocks, token_slots, window, score_scale, softcap, v_scale,
    stride_q_token, stride_q_head, stride_out_token, stride_slot, stride_table, num_query_heads,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, ALIBI: tl.constexpr, SINKS: tl.constexpr,
    GROUP: tl.constexpr, PAGE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
    D: tl.constexpr, D0: tl.constexpr, D1: tl.constexpr, SHORT_QUERY: tl.constexpr,
    SPLIT_TOKENS: tl.constexpr, MAX_SPLITS: tl.constexpr, DIRECT: tl.constexpr,
):  # fmt: skip
    BLOCK_Q: tl.constexpr = ROWS // GROUP
    request = tl.program_id(0) // row_blocks
    block_first = tl.program_id(0) % row_blocks * BLOCK_Q
    kv_head, split = tl.program_id(1), tl.program_id(2)
    q_start = tl.load(query_start_loc + request)
    q_len = tl.load(query_start_loc + request + 1) - q_start
    seq_len = tl.load(seq_lens + request)
    chunk = tl.cdiv(tl.cdiv(seq_len, SPLIT_TOKENS), MAX_SPLITS) * SPLIT_TOKENS
    start = split * chunk
    if (q_len > SHORT_QUERY) | (block_first >= q_len) | ((start >= seq_len) & (split > 0)):
        return

    rows = tl.arange(0, ROWS)
    tokens, heads = block_first + rows // GROUP, kv_head * GROUP + rows % GROUP
    valid = (rows < BLOCK_Q * GROUP) & (tokens < q_len)
    q_rows = (q_start + tokens).to(tl.int64) * stride_q_token + heads * stride_q_head
    q0 = load_rows(query, q_rows, valid, 0, D0, D, True)
    q1 = q0
    if D1 > 0:
        q1 = load_rows(query, q_rows, valid, D0, D1, D, True)

    q_first = seq_len - q_len + block_first
    q_last = tl.minimum(q_first + BLOCK_Q, seq_len) - 1
    row_max, row_sum = start_state(sinks, heads, valid, split == 0, softcap, ROWS, SINKS)
    acc0, acc1, row_max, row_sum = attend(
        row_max, row_sum, q0, q1, seq_len - q_len + tokens, q_first, q_last,
        _slopes(alibi_slopes, heads, valid, ROWS, ALIBI),
        key_cache + kv_head * D, value_cache + kv_head * D, block_table + request.to(tl.int64) * stride_table,
        stride_slot, start, tl.minimum(start + chunk, seq_len), window, score_scale, softcap,
        CAUSAL, WINDOW, SOFTCAP, ALIBI, PAGE, TILE, D, D0, D1, WINDOW,  # bound by memory: a short window masks for free
    )  # fmt: skip

    if DIRECT:  # one split can hold every context: nothing to merge, and the same bits as merging one split
        weight = (v_scale / tl.where(row_sum > 0.0, row_sum, 1.0))[:, None]
        out_rows = (q_start + tokens).to(tl.int64) * stride_out_token + heads * D
        store_rows(out, out_rows, valid, acc0 * weight, 0, D0, D)
        if D1 > 0:
            store_rows(out, out_rows, valid, acc1 * weight, D0, D1, D)
    else:  # partials are [num_requests, token_slots, num_query_heads, num_splits(, D)]
        slots = ((request * token_slots + tokens).to(tl.int64) * num_query_heads + heads) * tl.num_programs(2) + split
        tl.store(partial_max + slots, row_max, mask=valid)
        tl.store(partial_sum + slots, row_sum, mask=valid)
        store_rows(partial_acc, slots * D, valid, acc0, 0, D0, D)
        if D1 > 0:
            store_rows(partial_acc, slots * D, valid, acc1, D0, D1, D)


@triton.jit(do_not_specialize=["num_splits", "token_slots"])
def _reduce_splits(
    out, partial_acc, partial_max, partial_sum, seq_lens, query_start_loc, num_splits, token_slots, v_scale,
    stride_out_token, num_query_heads, D: tl.constexpr, D_PADDED: tl.constexpr, SHORT_QUERY: tl.constexpr,
    SPLIT_TOKENS: tl.constexpr, MAX_SPLITS: tl.constexpr,
):  # fmt: skip
    """Merges the splits of one (request, token, head). Always MAX_SPLITS lanes wide, so that the order of the sum,
    and the result to the bit, does not depend on how many splits the grid has."""
    request, token, head = tl.program_id(0) // token_slots, tl.program_id(0) % token_slots, tl.program_id(1)
    q_start = tl.load(query_start_loc + request)
    q_len = tl.load(query_start_loc + request + 1) - q_start
    if (q_len > SHORT_QUERY) | (token >= q_len):
        return
    seq_len = tl.load(seq_lens + request)
    chunk = tl.maximum(tl.cdiv(tl.cdiv(seq_len, SPLIT_TOKENS), MAX_SPLITS), 1) * SPLIT_TOKENS
    splits = tl.arange(0, MAX_SPLITS)
    written = splits < tl.cdiv(seq_len, chunk)
    slots = (tl.program_id(0).to(tl.int64) * num_query_heads + head) * num_splits + splits
    split_max = tl.load(partial_max + slots, mask=written, other=-1e30)
    split_sum = tl.load(partial_sum + slots, mask=written, other=0.0)
    weight = tl.exp2(split_max - tl.max(split_max, axis=0))
    total = tl.sum(split_sum * weight, axis=0)
    acc = load_rows(partial_acc, slots * D, written, 0, D_PADDED, D, True)
    merged = tl.sum(acc * weight[:, None], axis=0) * (v_scale / tl.where(total > 0.0, total, 1.0))
    channels = tl.arange(0, D_PADDED)
    pointers = out + (q_start + token).to(tl.int64) * stride_out_token + head * D + channels
    tl.store(pointers, merged.to(out.dtype.element_ty), mask=channels < D)


def split_head_dim(head_dim: int) -> tuple[int, int]:
    """Widths of the two parts a head is held in: powers of two, the second 0 or at least 32 (16 leaves warps idle)."""
    first = 1 << (head_dim.bit_length() - 1)
    rest = head_dim - first
    return first, max(32, triton.next_power_of_2(rest)) if rest else 0


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
    config: configs.AttentionConfig | None = None,
) -> Tensor:
    """Decodes the short queries and extends the others; a request takes part in exactly one of the two launches."""
    num_tokens, num_query_heads, head_dim = query.shape
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    num_requests = seq_lens.shape[0]
    if num_tokens == 0 or num_requests == 0:
        return out
    scores = configs.Scores.of(window, softcap, alibi_slopes is not None)
    config = config or configs.attention(configs.architecture(query.device), head_dim, query.dtype, scores)
    first, rest = split_head_dim(head_dim)
    group = num_query_heads // key_cache.shape[2]
    flags = {
        "CAUSAL": causal, "WINDOW": window > 0, "SOFTCAP": softcap > 0, "ALIBI": alibi_slopes is not None,
        "SINKS": sinks is not None, "GROUP": group, "PAGE": key_cache.shape[1], "D": head_dim, "D0": first, "D1": rest,
        "SHORT_QUERY": config.short_query,
    }  # fmt: skip
    # k_scale is part of the softmax's scale, v_scale of the epilogue; softcap's tanh wants 2 · log2(e) · s / cap.
    score_scale = scale * k_scale * LOG2E * (2.0 / softcap if softcap > 0 else 1.0)
    inputs = (query, key_cache, value_cache, block_table, seq_lens, query_start_loc, alibi_slopes, sinks)
    scalars = (window, score_scale, softcap * LOG2E, v_scale)
    strides = (query.stride(0), query.stride(1), out.stride(0), key_cache.stride(1), block_table.stride(0))
    pipeline = {"enable_fp_fusion": True, **dict(config.backend)}

    if max_query_len > config.short_query:
        rows = max(config.extend_rows, triton.next_power_of_2(group))
        blocks = num_tokens // (rows // group) + num_requests
        _extend_kernel[(blocks, key_cache.shape[2])](
            out, *inputs, num_requests, *scalars, *strides, **flags, ROWS=rows, TILE=config.extend_tile,
            num_warps=config.extend_warps, num_stages=config.extend_stages,
            **configs.at_most(config.extend_registers), **pipeline,
        )  # fmt: skip

    rows = max(16, triton.next_power_of_2(group))
    token_slots = min(max_query_len, config.short_query)
    row_blocks = triton.cdiv(token_slots, rows // group)
    capacity = block_table.shape[1] * key_cache.shape[1]  # host-side bound on every seq_len: no device sync
    num_splits = max(1, min(config.max_splits, triton.cdiv(capacity, config.split_tokens)))
    partial = torch.empty(
        (num_requests * token_slots * num_query_heads * num_splits if num_splits > 1 else 0, head_dim + 2),
        dtype=torch.float32, device=query.device,
    )  # fmt: skip
    partials = partial.view(-1).split([partial.shape[0] * head_dim, partial.shape[0], partial.shape[0]])
    splits = {"SPLIT_TOKENS": config.split_tokens, "MAX_SPLITS": config.max_splits}
    _decode_kernel[(num_requests * row_blocks, key_cache.shape[2], num_splits)](
        out, *partials, *inputs, row_blocks, token_slots, *scalars, *strides, num_query_heads, **flags, ROWS=rows,
        TILE=config.decode_tile, **splits, DIRECT=num_splits == 1,
        num_warps=config.decode_warps, num_stages=config.decode_stages, **configs.at_most(config.decode_registers),
        **pipeline,
    )  # fmt: skip
    if num_splits > 1:
        _reduce_splits[(num_requests * token_slots, num_query_heads)](
            out, *partials, seq_lens, query_start_loc, num_splits, token_slots, v_scale, out.stride(0),
            num_query_heads, D=head_dim, D_PADDED=triton.next_power_of_2(head_dim), SHORT_QUERY=config.short_query,
            **splits, num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip
    return out

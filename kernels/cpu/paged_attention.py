"""Attention over a paged KV cache on a CPU.

A work item is (request, block of queries, KV head). The rows of an item are its queries times the G query heads
that share the KV head; keys stream past them in tiles of TILE, each tile gathered from its pages once for all rows.
Items are listed by a kernel of its own and dealt to as many pieces as threads can share: how a recorded call is cut
says nothing of the batch that it was recorded with.

tile      K transposed [head_dim, TILE] and V [TILE, head_dim] in scratch that stays in cache
products  register tiles of up to 12 rows x 32 columns, one fused multiply-add per element and step
softmax   online: running maximum (starting at -1e30), sum and accumulator per row
fixed     tiles start at key 0 whatever the page size, chunk or batch, a row's arithmetic has one order, and a key a
          row does not see adds an exact 0; so a row's bits depend on its own query and context only
idea      flash attention (Dao et al., 2022); paging (Kwon et al., SOSP 2023)
"""

import math
from typing import Any

import numpy as np
from torch import Tensor

from kernels.cpu import threads
from kernels.cpu.arrays import flat, optional
from kernels.cpu.attention_tile import LOWEST, TILE, ZERO, gather_tile, softmax_tile, whole_vectors
from kernels.cpu.jit import kernel
from kernels.cpu.parallel import job, run_job
from kernels.cpu.recording import empty, empty_tensor
from kernels.cpu.simd import LANES, load, mul, splat, store
from kernels.cpu.tile_product import multiply

_ITEM_ROWS = 96  # rows an item aims at: enough to pay for gathering a tile, few enough to stay in cache
_CHUNK_WORK = 1 << 13  # rows x keys that take about 30 µs: below that, waking a thread costs more than it saves


@kernel
def _weigh_rows(scores, tops, norms, sums, rows, head_dim, kv_head, first_key, num_keys, visibility, transform, slopes):
    """Scores of a tile become weights; a row's sums fade by what its maximum rose."""
    used, group, first_position = rows
    causal, window = visibility
    scale, softcap = transform
    width = whole_vectors(head_dim)
    for row in range(used):
        position = first_position + row // group
        low = max(0, position - window + 1 - first_key) if window > 0 else 0
        high = min(num_keys, position + 1 - first_key) if causal else num_keys
        if window > 0:
            high = min(high, position + window - first_key)
        if low >= high:
            scores[row * TILE : (row + 1) * TILE] = 0
            continue
        slope = slopes[kv_head * group + row % group] if slopes.size else ZERO
        top, norm = softmax_tile(scores, row * TILE, low, high, first_key - position, scale, softcap, slope, tops[row])
        fade = np.float32(math.exp(tops[row] - top))
        tops[row], norms[row] = top, norms[row] * fade + norm
        if fade != 1:
            for d in range(row * width, (row + 1) * width, LANES):
                store(sums, d, mul(load(sums, d), splat(fade)))


@kernel
def _attend(
    out, query, query_strides, key_cache, value_cache, block_size, block_table, table_stride, seq_lens, query_start_loc,
    items, num_pieces, shape, visibility, transform, slopes, sinks, v_scale, start, stop,
):  # fmt: skip
    """Pieces [start, stop), item by item: the whole of attention for each, in scratch that they share."""
    num_kv_heads, group, head_dim, queries_per_item = shape
    causal, window = visibility
    width, most_rows = whole_vectors(head_dim), queries_per_item * group
    keys, values = np.empty(head_dim * TILE, np.float32), np.empty(TILE * width, np.float32)
    queries, scores = np.empty(most_rows * head_dim, np.float32), np.empty(most_rows * TILE, np.float32)
    sums, slots = np.empty(most_rows * width, np.float32), np.empty(TILE, np.int64)
    tops, norms = np.empty(most_rows, np.float32), np.empty(most_rows, np.float32)
    num_items = items[0] * num_kv_heads
    rounds = -(-num_items // num_pieces)

    for turn in range((stop - start) * rounds):
        item = start + turn // rounds + turn % rounds * num_pieces
        if item >= num_items:
            continue
        block, kv_head = divmod(item, num_kv_heads)
        request, first_query = items[2 * block + 2], items[2 * block + 3]
        first_token, end_token = query_start_loc[request] + first_query, query_start_loc[request + 1]
        num_queries = min(queries_per_item, end_token - first_token)
        first_position = seq_lens[request] - (end_token - first_token)
        used = num_queries * group
        sums[: used * width] = 0
        for row in range(used):
            head = kv_head * group + row % group
            source = (first_token + row // group) * query_strides[0] + head * query_strides[1]
            queries[row * head_dim : (row + 1) * head_dim] = query[source : source + head_dim]
            tops[row], norms[row] = (sinks[head], 1) if sinks.size else (LOWEST, 0)

        end = min(seq_lens[request], first_position + num_queries) if causal else seq_lens[request]
        begin = max(0, first_position - window + 1) if window > 0 else 0
        if window > 0:
            end = min(end, first_position + num_queries - 1 + window)
        pages = block_table[request * table_stride :]
        for first_key in range(begin // TILE * TILE, end, TILE):
            num_keys = min(TILE, end - first_key)
            gather_tile(
                key_cache, value_cache, pages, block_size, num_kv_heads, kv_head, head_dim, first_key, num_keys, slots,
                keys, values,
            )  # fmt: skip
            multiply(queries, head_dim, keys, TILE, scores, TILE, used, whole_vectors(num_keys), head_dim, False)
            _weigh_rows(
                scores, tops, norms, sums, (used, group, first_position), head_dim, kv_head, first_key, num_keys,
                visibility, transform, slopes,
            )  # fmt: skip
            multiply(scores, TILE, values, width, sums, width, used, width, num_keys, True)

        for row in range(used):
            head = kv_head * group + row % group
            target = ((first_token + row // group) * num_kv_heads * group + head) * head_dim
            factor = v_scale / norms[row] if norms[row] != 0 else ZERO
            for d in range(head_dim):
                out[target + d] = sums[row * width + d] * factor


@kernel
def _launch_attend(board, tape, num_items, num_chunks, *arguments):
    run_job(board, tape, job(_attend, arguments), num_items, num_chunks)


@kernel
def _list_blocks(query_start_loc, queries_per_item, items, start, stop):
    """items [most + 1, 2]: the number of blocks, then request and first query of each."""
    size = 0
    for request in range(query_start_loc.size - 1):
        for first_query in range(0, query_start_loc[request + 1] - query_start_loc[request], queries_per_item):
            size += 1
            items[2 * size], items[2 * size + 1] = request, first_query
    items[0] = size


@kernel
def _launch_list_blocks(board, tape, num_items, num_chunks, *arguments):
    run_job(board, tape, job(_list_blocks, arguments), num_items, num_chunks)


def paged_attention(
    query: Tensor,  # [num_tokens, num_query_heads, head_dim]
    key_cache: Tensor,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_cache: Tensor,
    block_table: Tensor,  # int32 [num_requests, max_blocks]
    seq_lens: Tensor,  # int32 [num_requests]
    query_start_loc: Tensor,  # int32 [num_requests + 1]
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
    """Attention of each request's new tokens over its paged context; see `kernels.reference.paged_attention`."""
    num_tokens, num_heads, head_dim = query.shape
    num_kv_heads = key_cache.shape[2]
    out = empty_tensor(query.shape)
    starts, lengths = query_start_loc.numpy(), seq_lens.numpy()
    if starts[-1] < num_tokens:
        out[int(starts[-1]) :] = 0  # rows of no request
    queries_per_item = max(1, min(max_query_len, _ITEM_ROWS * num_kv_heads // num_heads))
    most_blocks = len(lengths) + num_tokens // queries_per_item
    items = empty((most_blocks + 1, 2), np.int64).reshape(-1)
    threads.run(_launch_list_blocks, (starts, queries_per_item, items), 1)
    num_pieces = min(most_blocks * num_kv_heads, threads.max_chunks())
    arguments: tuple[Any, ...] = (
        flat(out), flat(query), query.stride()[:2], flat(key_cache), flat(value_cache), key_cache.shape[1],
        flat(block_table), block_table.stride(0), lengths, starts, items, num_pieces,
        (num_kv_heads, num_heads // num_kv_heads, head_dim, queries_per_item), (causal, window),
        (np.float32(scale * k_scale), np.float32(softcap)), optional(alibi_slopes), optional(sinks),
        np.float32(v_scale),
    )  # fmt: skip
    work = num_tokens * num_heads * int(lengths.max(initial=1))
    threads.run(_launch_attend, arguments, num_pieces, min_items=num_pieces * _CHUNK_WORK // max(work, 1))
    return out

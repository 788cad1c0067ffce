"""The three steps of attention over one tile of keys: gather it from its pages, multiply, softmax."""

import numpy as np

from kernels.cpu.jit import kernel
from kernels.cpu.simd import (
    LANES,
    add,
    fma,
    inside,
    largest,
    load,
    maximum,
    mul,
    ramp,
    splat,
    store,
    sub,
    total,
    transpose,
)
from kernels.cpu.vector_math import exp, tanh

TILE = 64  # keys
ROWS = 4  # height of the register tile
LOWEST = np.float32(-1e30)  # where a maximum starts: finite, so that LOWEST - LOWEST is 0 and not NaN
ZERO = np.float32(0)


@kernel
def whole_vectors(size):
    return (size + LANES - 1) // LANES * LANES


@kernel
def multiply(a, lda, b, ldb, c, ldc, num_rows, num_columns, depth, accumulate):
    """c = a @ b, or c += a @ b; num_rows is a multiple of 4, num_columns of 16, and depth runs in ascending order."""
    for column in range(0, num_columns, LANES):
        for row in range(0, num_rows, ROWS):
            a0, c0 = row * lda, row * ldc + column
            a1, a2, a3 = a0 + lda, a0 + 2 * lda, a0 + 3 * lda
            c1, c2, c3 = c0 + ldc, c0 + 2 * ldc, c0 + 3 * ldc
            sum0 = sum1 = sum2 = sum3 = splat(ZERO)
            if accumulate:
                sum0, sum1, sum2, sum3 = load(c, c0), load(c, c1), load(c, c2), load(c, c3)
            for i in range(depth):
                b_row = load(b, i * ldb + column)
                sum0 = fma(splat(a[a0 + i]), b_row, sum0)
                sum1 = fma(splat(a[a1 + i]), b_row, sum1)
                sum2 = fma(splat(a[a2 + i]), b_row, sum2)
                sum3 = fma(splat(a[a3 + i]), b_row, sum3)
            store(c, c0, sum0)
            store(c, c1, sum1)
            store(c, c2, sum2)
            store(c, c3, sum3)


@kernel
def gather_tile(
    key_cache, value_cache, pages, block_size, num_kv_heads, head, head_dim, first_key, num_keys, starts, keys, values
):
    """Keys [first_key, first_key + num_keys) of one KV head: K transposed into `keys`, V into `values`.

    `keys` is written in whole vectors; past num_keys they repeat the last key, which nobody sees.
    """
    for j in range(TILE):
        block, slot = divmod(first_key + min(j, num_keys - 1), block_size)
        starts[j] = ((np.int64(pages[block]) * block_size + slot) * num_kv_heads + head) * head_dim
    whole = head_dim // LANES * LANES
    for j in range(0, num_keys, LANES):
        for d in range(0, whole, LANES):
            transpose(key_cache, starts, j, d, keys, d * TILE + j, TILE)
        for d in range(whole, head_dim):
            for lane in range(j, j + LANES):
                keys[d * TILE + lane] = key_cache[starts[lane] + d]
    width = whole_vectors(head_dim)
    for j in range(num_keys):
        for d in range(0, whole, LANES):
            store(values, j * width + d, load(value_cache, starts[j] + d))
        for d in range(whole, head_dim):
            values[j * width + d] = value_cache[starts[j] + d]


@kernel
def softmax_tile(scores, base, low, high, distance, scale, softcap, slope, top):
    """One row's scores of a tile become weights, 0 outside [low, high); returns (new maximum, sum of weights).

    `distance` is (position of the tile's first key) - (position of the query), for ALiBi; `top` the maximum so far.
    """
    tops = splat(top)
    for j in range(0, TILE, LANES):
        score = mul(load(scores, base + j), splat(scale))
        if softcap > 0:
            score = mul(tanh(mul(score, splat(np.float32(1) / softcap))), splat(softcap))
        if slope != 0:
            score = fma(splat(slope), ramp(distance + j), score)
        score = inside(j, low, high, score, splat(LOWEST))
        store(scores, base + j, score)
        tops = maximum(tops, score)
    top = largest(tops)
    sums = splat(ZERO)
    for j in range(0, TILE, LANES):
        weight = inside(j, low, high, exp(sub(load(scores, base + j), splat(top))), splat(ZERO))
        store(scores, base + j, weight)
        sums = add(sums, weight)
    return top, total(sums)

"""The steps of attention over one tile of keys beside its products: gather it from its pages, softmax."""

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
LOWEST = np.float32(-1e30)  # where a maximum starts: finite, so that LOWEST - LOWEST is 0 and not NaN
ZERO = np.float32(0)


@kernel
def whole_vectors(size):
    return (size + LANES - 1) // LANES * LANES


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

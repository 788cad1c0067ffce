"""QK-norm, rotary embedding and the scatter of K and V into their cache slots, token by token, on a CPU."""

import numpy as np
from torch import Tensor

from kernels.cpu import threads
from kernels.cpu.arrays import flat, optional
from kernels.cpu.jit import kernel
from kernels.cpu.norms import scale_to_unit_rms
from kernels.cpu.parallel import job, run_job

_CHUNK_ELEMENTS = 1 << 15  # about 10 µs of work: below that, waking a thread costs more than it saves


@kernel
def _rotate(x, cos, sin, interleaved):
    """Rotates the first 2 · cos.size channels of one head in place.

    NeoX pairs channel i with i + rotary_dim / 2; interleaved (GPT-J) pairs channel 2i with 2i + 1.
    """
    half = cos.size
    if interleaved:
        for i in range(half):
            a, b = x[2 * i], x[2 * i + 1]
            x[2 * i], x[2 * i + 1] = a * cos[i] - b * sin[i], b * cos[i] + a * sin[i]
    else:
        first, second = x[:half], x[half : 2 * half]
        for i in range(half):
            a, b = first[i], second[i]
            first[i], second[i] = a * cos[i] - b * sin[i], b * cos[i] + a * sin[i]


@kernel
def _turn_and_write(
    query, key, value, strides, shape, cos_sin, rotary_dim, rope_rows, key_cache, value_cache, slots, q_norm, k_norm,
    plus, eps, interleaved, k_scale, v_scale, start, stop,
):  # fmt: skip
    """Tokens [start, stop). An empty norm weight stands for none, and rotary_dim 0 for no rotation."""
    num_query_heads, num_kv_heads, head_dim = shape
    for token in range(start, stop):
        turn = cos_sin[rope_rows[token] * rotary_dim : (rope_rows[token] + 1) * rotary_dim]
        cos, sin = turn[: rotary_dim // 2], turn[rotary_dim // 2 :]
        for head in range(num_query_heads + num_kv_heads):
            is_query = head < num_query_heads
            source, norm = (query, q_norm) if is_query else (key, k_norm)
            token_stride, head_stride = strides[0] if is_query else strides[1]
            first = token * token_stride + (head if is_query else head - num_query_heads) * head_stride
            x = source[first : first + head_dim]
            if norm.size:
                scale_to_unit_rms(x, norm, plus, eps, x)
            if rotary_dim:
                _rotate(x, cos, sin, interleaved)
        if slots[token] < 0:
            continue  # a padding row
        for head in range(num_kv_heads):
            target = (slots[token] * num_kv_heads + head) * head_dim
            k = token * strides[1][0] + head * strides[1][1]
            v = token * strides[2][0] + head * strides[2][1]
            key_slot, value_slot = key_cache[target : target + head_dim], value_cache[target : target + head_dim]
            for d in range(head_dim):
                key_slot[d] = key[k + d] / k_scale
                value_slot[d] = value[v + d] / v_scale


@kernel
def _launch_turn_and_write(board, tape, num_items, num_chunks, *arguments):
    run_job(board, tape, job(_turn_and_write, arguments), num_items, num_chunks)


def rope_and_cache_write(
    query: Tensor,  # [num_tokens, num_query_heads, head_dim]
    key: Tensor,  # [num_tokens, num_kv_heads, head_dim]
    value: Tensor,
    cos_sin: Tensor | None,  # float32 [rows, rotary_dim]: cos in the first half, sin in the second
    rope_rows: Tensor,  # int32 or int64 [num_tokens]
    key_cache: Tensor,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_cache: Tensor,
    slot_mapping: Tensor,  # int64 [num_tokens]; -1: padding row
    *,
    q_norm_weight: Tensor | None = None,  # [head_dim]
    k_norm_weight: Tensor | None = None,
    eps: float = 1e-6,
    norm_one_plus: bool = False,
    interleaved: bool = False,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    """QK-norm (optional) and rotation of query and key in place, then key and value into their cache slots."""
    num_tokens, num_query_heads, head_dim = query.shape
    num_kv_heads = key.shape[1]
    arguments = (
        flat(query), flat(key), flat(value), (query.stride()[:2], key.stride()[:2], value.stride()[:2]),
        (num_query_heads, num_kv_heads, head_dim), optional(cos_sin), 0 if cos_sin is None else cos_sin.shape[1],
        flat(rope_rows.long()), flat(key_cache), flat(value_cache), flat(slot_mapping), optional(q_norm_weight),
        optional(k_norm_weight), np.float32(norm_one_plus), np.float32(eps), interleaved, np.float32(k_scale),
        np.float32(v_scale),
    )  # fmt: skip
    min_items = _CHUNK_ELEMENTS // ((num_query_heads + 2 * num_kv_heads) * head_dim)
    threads.run(_launch_turn_and_write, arguments, num_tokens, min_items=min_items)

"""QK-norm (optional), rotary embedding and the scatter of new keys and values into the paged cache: one kernel.

grid      (num_tokens, blocks of query heads, then blocks of KV heads)
tile      HEADS heads of one token, as two halves that rotate against each other and the channels that do not

          head h  [ first ... | second ... | rest ]    NeoX: first[i] turns with second[i], by angle i of the position
                  [ f s f s f s ...        | rest ]    GPT-J: the two lie side by side
                      ↓ query: in place    ↓ key, value: in place, and to the slot's page of the cache

moves     (2 · num_query_heads + 5 · num_kv_heads) · head_dim · bytes_per_element a token, 3 FLOP a channel (8 with
          QK-norm): memory bound; floor = bytes / bandwidth
writes    query and key in place; key / k_scale and value / v_scale to slot_mapping's slot, none for slot -1
idea      rotary embedding (Su et al., 2021), QK-norm (Henry et al., 2020); one pass instead of four kernels: the packed
          QKV row is still in cache when its parts are needed
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton import configs


@triton.jit
def _load_parts(
    pointer, rows, keep, INTERLEAVED: tl.constexpr, HALF: tl.constexpr, HALF_PADDED: tl.constexpr,
    D: tl.constexpr, REST_PADDED: tl.constexpr,
):  # fmt: skip
    """A tile of heads as float32 (first, second, rest): first[i] rotates against second[i], rest stays."""
    if INTERLEAVED:
        channels = tl.arange(0, 2 * HALF_PADDED)
        turned = tl.load(pointer + rows + channels[None, :], mask=keep & (channels < 2 * HALF)[None, :], other=0.0)
        first, second = tl.split(tl.reshape(turned, [rows.shape[0], HALF_PADDED, 2]))
    else:
        half = tl.arange(0, HALF_PADDED)
        mask = keep & (half < HALF)[None, :]
        first = tl.load(pointer + rows + half[None, :], mask=mask, other=0.0)
        second = tl.load(pointer + rows + HALF + half[None, :], mask=mask, other=0.0)
    channels = 2 * HALF + tl.arange(0, REST_PADDED)
    rest = tl.load(pointer + rows + channels[None, :], mask=keep & (channels < D)[None, :], other=0.0)
    return first.to(tl.float32), second.to(tl.float32), rest.to(tl.float32)


@triton.jit
def _store_parts(
    pointer, rows, keep, first, second, rest, LIMIT: tl.constexpr, INTERLEAVED: tl.constexpr, HALF: tl.constexpr,
    HALF_PADDED: tl.constexpr, D: tl.constexpr, REST_PADDED: tl.constexpr,
):  # fmt: skip
    if INTERLEAVED:
        channels = tl.arange(0, 2 * HALF_PADDED)
        turned = tl.reshape(tl.join(first, second), [rows.shape[0], 2 * HALF_PADDED])
        mask = keep & (channels < 2 * HALF)[None, :]
        tl.store(pointer + rows + channels[None, :], _narrow(turned, pointer, LIMIT), mask=mask)
    else:
        half = tl.arange(0, HALF_PADDED)
        mask = keep & (half < HALF)[None, :]
        tl.store(pointer + rows + half[None, :], _narrow(first, pointer, LIMIT), mask=mask)
        tl.store(pointer + rows + HALF + half[None, :], _narrow(second, pointer, LIMIT), mask=mask)
    channels = 2 * HALF + tl.arange(0, REST_PADDED)
    mask = keep & (channels < D)[None, :]
    tl.store(pointer + rows + channels[None, :], _narrow(rest, pointer, LIMIT), mask=mask)


@triton.jit
def _narrow(x, pointer, LIMIT: tl.constexpr):
    """x in the pointer's type; clamped first where LIMIT is set, as FP8 casts do not saturate everywhere."""
    if LIMIT > 0:
        x = tl.minimum(tl.maximum(x, -LIMIT), LIMIT)
    return x.to(pointer.dtype.element_ty)


@triton.jit
def _gain(weight, channels, inside, ONE_PLUS: tl.constexpr):
    gain = tl.load(weight + channels, mask=inside, other=0.0).to(tl.float32)
    return (gain + 1.0 if ONE_PLUS else gain)[None, :]


@triton.jit
def _norm_and_turn(
    first, second, rest, weight, cos_sin_row, eps, NORM: tl.constexpr, ONE_PLUS: tl.constexpr,
    INTERLEAVED: tl.constexpr, HALF: tl.constexpr, HALF_PADDED: tl.constexpr, D: tl.constexpr,
    REST_PADDED: tl.constexpr,
):  # fmt: skip
    half = tl.arange(0, HALF_PADDED)
    if NORM:
        squares = tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1) + tl.sum(rest * rest, axis=1)
        scale = tl.rsqrt(squares / D + eps)[:, None]
        channels = 2 * HALF + tl.arange(0, REST_PADDED)
        if INTERLEAVED:
            first *= scale * _gain(weight, 2 * half, half < HALF, ONE_PLUS)
            second *= scale * _gain(weight, 2 * half + 1, half < HALF, ONE_PLUS)
        else:
            first *= scale * _gain(weight, half, half < HALF, ONE_PLUS)
            second *= scale * _gain(weight, HALF + half, half < HALF, ONE_PLUS)
        rest *= scale * _gain(weight, channels, channels < D, ONE_PLUS)
    if HALF > 0:
        cos = tl.load(cos_sin_row + half, mask=half < HALF, other=0.0)[None, :]
        sin = tl.load(cos_sin_row + HALF + half, mask=half < HALF, other=0.0)[None, :]
        first, second = first * cos - second * sin, second * cos + first * sin
    return first, second, rest


@triton.jit
def _rope_kernel(
    query, key, value, cos_sin, rope_rows, key_cache, value_cache, slot_mapping, q_norm_weight, k_norm_weight,
    eps, k_scale, v_scale, num_query_heads, num_kv_heads,
    stride_q_token, stride_q_head, stride_k_token, stride_k_head, stride_v_token, stride_v_head,
    Q_NORM: tl.constexpr, K_NORM: tl.constexpr, ONE_PLUS: tl.constexpr, INTERLEAVED: tl.constexpr,
    HALF: tl.constexpr, HALF_PADDED: tl.constexpr, D: tl.constexpr, REST_PADDED: tl.constexpr,
    D_PADDED: tl.constexpr, HEADS: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head_block = tl.program_id(1)
    query_blocks = tl.cdiv(num_query_heads, HEADS)
    lanes = tl.arange(0, HEADS)
    cos_sin_row = cos_sin
    if HALF > 0:
        cos_sin_row = cos_sin + tl.load(rope_rows + token).to(tl.int64) * (2 * HALF)
    if head_block < query_blocks:
        heads = head_block * HEADS + lanes
        keep = (heads < num_query_heads)[:, None]
        rows = (token * stride_q_token + heads * stride_q_head)[:, None]
        first, second, rest = _load_parts(query, rows, keep, INTERLEAVED, HALF, HALF_PADDED, D, REST_PADDED)
        first, second, rest = _norm_and_turn(
            first, second, rest, q_norm_weight, cos_sin_row, eps, Q_NORM, ONE_PLUS, INTERLEAVED,
            HALF, HALF_PADDED, D, REST_PADDED,
        )  # fmt: skip
        _store_parts(query, rows, keep, first, second, rest, 0, INTERLEAVED, HALF, HALF_PADDED, D, REST_PADDED)
    else:
        heads = (head_block - query_blocks) * HEADS + lanes
        keep = (heads < num_kv_heads)[:, None]
        rows = (token * stride_k_token + heads * stride_k_head)[:, None]
        first, second, rest = _load_parts(key, rows, keep, INTERLEAVED, HALF, HALF_PADDED, D, REST_PADDED)
        first, second, rest = _norm_and_turn(
            first, second, rest, k_norm_weight, cos_sin_row, eps, K_NORM, ONE_PLUS, INTERLEAVED,
            HALF, HALF_PADDED, D, REST_PADDED,
        )  # fmt: skip
        _store_parts(key, rows, keep, first, second, rest, 0, INTERLEAVED, HALF, HALF_PADDED, D, REST_PADDED)
        slot = tl.load(slot_mapping + token)
        if slot >= 0:
            cells = (slot * num_kv_heads * D + heads * D)[:, None]
            _store_parts(
                key_cache, cells, keep, first / k_scale, second / k_scale, rest / k_scale, LIMIT, INTERLEAVED,
                HALF, HALF_PADDED, D, REST_PADDED,
            )  # fmt: skip
            channels = tl.arange(0, D_PADDED)[None, :]
            inside = keep & (channels < D)
            value_rows = (token * stride_v_token + heads * stride_v_head)[:, None]
            new = tl.load(value + value_rows + channels, mask=inside, other=0.0).to(tl.float32) / v_scale
            tl.store(value_cache + cells + channels, _narrow(new, value_cache, LIMIT), mask=inside)


def rope_and_cache_write(
    query: Tensor,  # [num_tokens, num_query_heads, head_dim]
    key: Tensor,  # [num_tokens, num_kv_heads, head_dim]
    value: Tensor,
    cos_sin: Tensor | None,  # [rows, rotary_dim]
    rope_rows: Tensor,  # [num_tokens]
    key_cache: Tensor,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_cache: Tensor,
    slot_mapping: Tensor,  # [num_tokens]
    *,
    q_norm_weight: Tensor | None = None,
    k_norm_weight: Tensor | None = None,
    eps: float = 1e-6,
    norm_one_plus: bool = False,
    interleaved: bool = False,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    num_tokens, num_query_heads, head_dim = query.shape
    num_kv_heads = key.shape[1]
    if num_tokens == 0:
        return
    half = 0 if cos_sin is None else cos_sin.shape[1] // 2
    rest = head_dim - 2 * half
    heads = configs.rope_heads(head_dim)
    _rope_kernel[(num_tokens, triton.cdiv(num_query_heads, heads) + triton.cdiv(num_kv_heads, heads))](
        query, key, value, cos_sin, rope_rows, key_cache, value_cache, slot_mapping, q_norm_weight, k_norm_weight,
        eps, k_scale, v_scale, num_query_heads, num_kv_heads,
        query.stride(0), query.stride(1), key.stride(0), key.stride(1), value.stride(0), value.stride(1),
        Q_NORM=q_norm_weight is not None, K_NORM=k_norm_weight is not None, ONE_PLUS=norm_one_plus,
        INTERLEAVED=interleaved, HALF=half, HALF_PADDED=triton.next_power_of_2(max(half, 1)), D=head_dim,
        REST_PADDED=triton.next_power_of_2(max(rest, 1)), D_PADDED=triton.next_power_of_2(head_dim), HEADS=heads,
        LIMIT=torch.finfo(key_cache.dtype).max if key_cache.dtype.itemsize == 1 else 0,
        num_warps=configs.ROPE_WARPS, enable_fp_fusion=True,
    )  # fmt: skip

"""The twins of the ops that write the KV cache."""

import torch
from torch import Tensor

from kernels.reference.layers import rms


def rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Rotary embedding of the first 2 · cos.shape[-1] channels of x [T, H, D]; the rest pass through.

    NeoX pairs channel i with i + rotary_dim / 2; interleaved (GPT-J) pairs channel 2i with 2i + 1.
    """
    half = cos.shape[-1]
    cos, sin = cos[:, None, :], sin[:, None, :]
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    first, second = (turned[..., 0::2], turned[..., 1::2]) if interleaved else (turned[..., :half], turned[..., half:])
    pair = (first * cos - second * sin, second * cos + first * sin)
    turned = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
    return torch.cat([turned, rest], dim=-1)


def to_cache_dtype(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounds to the cache's dtype; FP8 casts do not saturate everywhere, so values are clamped first."""
    if dtype.itemsize == 1:
        limit = torch.finfo(dtype).max
        x = x.clamp(-limit, limit)
    return x.to(dtype)


def rope_and_cache_write(
    query: Tensor,  # [num_tokens, num_query_heads, head_dim]
    key: Tensor,  # [num_tokens, num_kv_heads, head_dim]
    value: Tensor,
    cos_sin: Tensor | None,  # [rows, rotary_dim]: cos in the first half, sin in the second
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
    """QK-norm (optional), then rotation, of query and key in place; then key / k_scale and value / v_scale into
    the cache slots. Slot -1 marks a padding row: rotated, never written."""
    q, k = query.double(), key.double()
    if q_norm_weight is not None:
        q = rms(query, q_norm_weight, eps, norm_one_plus)
    if k_norm_weight is not None:
        k = rms(key, k_norm_weight, eps, norm_one_plus)
    if cos_sin is not None:
        cos, sin = cos_sin[rope_rows.long()].double().chunk(2, dim=-1)
        q, k = rotate(q, cos, sin, interleaved), rotate(k, cos, sin, interleaved)
    query.copy_(q)
    key.copy_(k)
    written = slot_mapping >= 0
    blocks = slot_mapping[written] // key_cache.shape[1]
    offsets = slot_mapping[written] % key_cache.shape[1]
    key_cache[blocks, offsets] = to_cache_dtype(k[written] / k_scale, key_cache.dtype)
    value_cache[blocks, offsets] = to_cache_dtype(value[written].double() / v_scale, value_cache.dtype)


def copy_blocks(key_cache: Tensor, value_cache: Tensor, block_pairs: Tensor) -> None:
    """Copies blocks inside a layer's two caches: for each row (source, destination) of block_pairs int64 [num, 2].

    Destinations are distinct, and none of them is a source.
    """
    for cache in (key_cache, value_cache):
        cache[block_pairs[:, 1]] = cache[block_pairs[:, 0]]


def swap_blocks(source: Tensor, destination: Tensor, block_pairs: Tensor) -> None:
    """Copies blocks of one cache into another, on any two devices: (source, destination) ids, int64 [num, 2]."""
    moved = source[block_pairs[:, 0].to(source.device)]
    destination[block_pairs[:, 1].to(destination.device)] = moved.to(destination.device)

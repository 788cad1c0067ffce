"""Copies of whole KV blocks on a CPU: torch's own gather and scatter of rows, which move bytes and compute nothing."""

from torch import Tensor


def copy_blocks(
    key_cache: Tensor,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_cache: Tensor,
    block_pairs: Tensor,  # int64 [num_pairs, 2]: (source, destination)
) -> None:
    """Copies blocks inside one layer's caches."""
    for cache in (key_cache, value_cache):
        swap_blocks(cache, cache, block_pairs)


def swap_blocks(
    source: Tensor,  # [num_blocks, block_size, num_kv_heads, head_dim], a cache
    destination: Tensor,  # the same but for num_blocks
    block_pairs: Tensor,  # int64 [num_pairs, 2]: (source, destination)
) -> None:
    """Copies blocks of one cache into another."""
    destination.index_copy_(0, block_pairs[:, 1], source.index_select(0, block_pairs[:, 0]))

"""Copies of whole KV blocks: inside a layer's caches by a kernel, between device and host by the copy engines.

copy_blocks  key_cache[d], value_cache[d] = key_cache[s], value_cache[s] for every pair (s, d)
  grid       (num_pairs, chunks of a block)
  tile       COPY_BYTES bytes of a block, as bytes: one compiled form for every dtype, FP8 included

             block s  [ chunk 0 | chunk 1 | ... | masked tail ]   one program copies one chunk, of K and of V
             block d  [    ↓    |    ↓    |     |      ↓      ]

  moves      4 · block_bytes a pair and no FLOP: memory bound; floor = bytes / bandwidth
swap_blocks  no kernel: a kernel that reads host memory over the bus holds multiprocessors that the step needs, and is
             no faster. `copy_` between a device and pinned memory runs on a copy engine, beside the step's kernels; a
             run of consecutive blocks is one transfer, so fixed costs are paid once a run
idea         copy-on-write of pages, swapping (Kwon et al., SOSP 2023)
"""

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton import configs


@triton.jit
def _copy_kernel(key_cache, value_cache, block_pairs, block_bytes, BYTES: tl.constexpr):
    pair = tl.program_id(0).to(tl.int64)
    source = tl.load(block_pairs + 2 * pair).to(tl.int64) * block_bytes
    destination = tl.load(block_pairs + 2 * pair + 1).to(tl.int64) * block_bytes
    offsets = tl.program_id(1) * BYTES + tl.arange(0, BYTES)
    inside = offsets < block_bytes
    key = tl.load(key_cache + source + offsets, mask=inside)
    value = tl.load(value_cache + source + offsets, mask=inside)
    tl.store(key_cache + destination + offsets, key, mask=inside)
    tl.store(value_cache + destination + offsets, value, mask=inside)


def copy_blocks(
    key_cache: Tensor,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_cache: Tensor,
    block_pairs: Tensor,  # int64 [num_pairs, 2]: (source, destination)
) -> None:
    num_pairs = block_pairs.shape[0]
    block_bytes = key_cache.stride(0) * key_cache.element_size()
    if num_pairs and block_bytes:
        _copy_kernel[(num_pairs, triton.cdiv(block_bytes, configs.COPY_BYTES))](
            key_cache.view(torch.uint8), value_cache.view(torch.uint8), block_pairs, block_bytes,
            BYTES=configs.COPY_BYTES, num_warps=4,
        )  # fmt: skip


def swap_blocks(
    source: Tensor,  # [num_blocks, block_size, num_kv_heads, head_dim], a cache
    destination: Tensor,  # the same but for num_blocks and the device
    block_pairs: Tensor,  # int64 [num_pairs, 2] in host memory: (source, destination)
) -> None:
    for source_first, destination_first, length in runs(block_pairs.tolist()):
        blocks = source[source_first : source_first + length]
        destination[destination_first : destination_first + length].copy_(blocks, non_blocking=True)


def runs(pairs: list[list[int]]) -> Iterator[tuple[int, int, int]]:
    """(first source, first destination, length) of each run of pairs in which both ids go up by one."""
    start = 0
    for end in range(1, len(pairs) + 1):
        if end == len(pairs) or pairs[end] != [pairs[end - 1][0] + 1, pairs[end - 1][1] + 1]:
            source, destination = pairs[start]
            yield source, destination, end - start
            start = end

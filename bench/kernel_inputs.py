"""Inputs of the ops at any size, on any device, with what an op must move and compute for them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels import ops


@dataclass(frozen=True, slots=True)
class OpCall:
    """One op with its arguments. Floors count each byte once, as if every operand came from memory."""

    op: str
    arguments: Mapping[str, Any]
    num_bytes: float
    flop: float = 0.0
    in_place: tuple[str, ...] = ()           # arguments that the op writes
    exact: bool = False                      # the result is right only to the bit

    def __call__(self) -> Any:
        return getattr(ops, self.op)(**self.arguments)


Build = Callable[[], OpCall]


def attention(
    query_lens: Sequence[int],
    seq_lens: Sequence[int],
    *,
    device: torch.device,
    dtype: torch.dtype,
    page: int = 64,
    num_query_heads: int = 32,
    num_kv_heads: int = 8,
    head_dim: int = 128,
    cache_dtype: torch.dtype | None = None,
    **options: Any,
) -> OpCall:
    """A batch over a cache in which every request's pages lie scattered."""
    blocks = [-(-length // page) for length in seq_lens]
    table = torch.zeros(len(blocks), max(blocks), dtype=torch.int32)
    for row, owned in zip(table, torch.randperm(sum(blocks)).split(blocks), strict=True):
        row[: len(owned)] = owned
    cache_dtype = cache_dtype or dtype
    shape = (sum(blocks), page, num_kv_heads, head_dim)
    caches = [torch.randn(shape, device=device, dtype=dtype).to(cache_dtype) for _ in range(2)]
    query = torch.randn(sum(query_lens), num_query_heads, head_dim, device=device, dtype=dtype)
    pairs = list(zip(query_lens, seq_lens, strict=True))
    return OpCall(
        "paged_attention",
        {
            "query": query, "key_cache": caches[0], "value_cache": caches[1], "block_table": table.to(device),
            "seq_lens": torch.tensor(seq_lens, dtype=torch.int32, device=device),
            "query_start_loc": torch.tensor([0, *query_lens], device=device).cumsum(0).to(torch.int32),
            "scale": head_dim**-0.5, "max_query_len": max(query_lens), **options,
        },
        num_bytes=sum(seq_lens) * num_kv_heads * head_dim * 2 * cache_dtype.itemsize
        + 2 * query.numel() * dtype.itemsize + 4 * sum(length / page for length in seq_lens),
        flop=4 * num_query_heads * head_dim * sum(q * (length - q) + q * (q + 1) / 2 for q, length in pairs),
    )  # fmt: skip


def varlen(
    lengths: Sequence[int],
    *,
    device: torch.device,
    dtype: torch.dtype,
    num_query_heads: int = 32,
    num_kv_heads: int = 8,
    head_dim: int = 128,
    causal: bool = False,
    **options: Any,
) -> OpCall:
    """An encoder's batch: query, key and value as views of packed QKV, NaN between the tokens."""
    num_heads = num_query_heads + 2 * num_kv_heads
    packed = torch.full((sum(lengths), num_heads + 1, head_dim), torch.nan, device=device, dtype=dtype)
    packed[:, :num_heads] = torch.randn(sum(lengths), num_heads, head_dim, device=device, dtype=dtype)
    query, key, value, _ = packed.split([num_query_heads, num_kv_heads, num_kv_heads, 1], dim=1)
    seen = sum(length * (length + 1) / 2 if causal else length**2 for length in lengths)
    return OpCall(
        "varlen_attention",
        {
            "query": query, "key": key, "value": value,
            "query_start_loc": torch.tensor([0, *lengths], device=device).cumsum(0).to(torch.int32),
            "scale": head_dim**-0.5, "max_query_len": max(lengths), "causal": causal, **options,
        },
        num_bytes=sum(lengths) * (2 * num_query_heads + 2 * num_kv_heads) * head_dim * dtype.itemsize,
        flop=4 * num_query_heads * head_dim * seen,
    )  # fmt: skip


def rope_write(
    num_tokens: int,
    *,
    device: torch.device,
    dtype: torch.dtype,
    page: int = 64,
    num_query_heads: int = 32,
    num_kv_heads: int = 8,
    head_dim: int = 128,
    cache_dtype: torch.dtype | None = None,
    **options: Any,
) -> OpCall:
    """A prompt's query, key and value as views of packed QKV, written to scattered slots."""
    packed = torch.randn(num_tokens, num_query_heads + 2 * num_kv_heads, head_dim, device=device, dtype=dtype)
    query, key, value = packed.split([num_query_heads, num_kv_heads, num_kv_heads], dim=1)
    angles = torch.rand(num_tokens, head_dim // 2, device=device) * 6
    num_blocks = -(-num_tokens // page)
    caches = torch.zeros(2, num_blocks, page, num_kv_heads, head_dim, device=device, dtype=dtype)
    key_cache, value_cache = caches.to(cache_dtype or dtype)
    in_place = 2 * num_query_heads + 3 * num_kv_heads   # heads: query and key read and written, value read
    cached = 2 * num_kv_heads
    return OpCall(
        "rope_and_cache_write",
        {
            "query": query, "key": key, "value": value, "cos_sin": torch.cat((angles.cos(), angles.sin()), dim=1),
            "rope_rows": torch.arange(num_tokens, device=device), "key_cache": key_cache, "value_cache": value_cache,
            "slot_mapping": torch.randperm(num_blocks * page, device=device)[:num_tokens], **options,
        },
        num_bytes=num_tokens
        * (head_dim * (in_place * dtype.itemsize + cached * key_cache.element_size() + 4) + 16),
        in_place=("query", "key", "key_cache", "value_cache"),
    )  # fmt: skip


def norm(
    op: str, num_tokens: int, hidden: int, *, device: torch.device, dtype: torch.dtype, **options: Any
) -> OpCall:
    """rms_norm, add_rms_norm or layer_norm."""

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device, dtype=dtype)

    arguments = {"x": random(num_tokens, hidden), "weight": random(hidden), "eps": 1e-6, **options}
    moved = 2
    if op == "add_rms_norm":
        arguments["residual"], moved = random(num_tokens, hidden), 4
    if op == "layer_norm":
        arguments["bias"] = random(hidden)
    return OpCall(
        op, arguments, moved * num_tokens * hidden * dtype.itemsize,
        in_place=("residual",) if op == "add_rms_norm" else (),
    )  # fmt: skip


def gated(
    op: str, num_tokens: int, width: int, *, device: torch.device, dtype: torch.dtype, **options: Any
) -> OpCall:
    """silu_and_mul or gelu_and_mul."""
    gate_up = torch.randn(num_tokens, 2 * width, device=device, dtype=dtype)
    return OpCall(op, {"gate_up": gate_up, **options}, 1.5 * gate_up.nbytes)


def sampling(
    num_rows: int, vocab_size: int, *, device: torch.device, temperature: float = 0.8, top_k: int = 0,
    top_p: float = 1.0, min_p: float = 0.0,
) -> OpCall:  # fmt: skip
    """`num_bytes` is one reading of the logits."""
    logits = torch.randn(num_rows, vocab_size, device=device) * 3

    def filled(value: float, dtype: torch.dtype) -> Tensor:
        return torch.full((num_rows,), value, dtype=dtype, device=device)

    return OpCall(
        "sample",
        {
            "logits": logits, "temperature": filled(temperature, torch.float32), "top_k": filled(top_k, torch.int32),
            "top_p": filled(top_p, torch.float32), "min_p": filled(min_p, torch.float32),
            "seeds": torch.arange(num_rows, device=device), "choices": filled(0, torch.int32),
            "positions": torch.arange(num_rows, dtype=torch.int32, device=device),
        },
        num_bytes=logits.nbytes, exact=True,
    )  # fmt: skip


def penalties(
    num_rows: int, vocab_size: int, *, device: torch.device, listed: int, masked: bool = False
) -> OpCall:
    """Every row has `listed` known tokens, eight biases and two ids that may not end it yet.

    A listed token costs its list entry and two 32-byte sectors of logits, a mask its own bits.
    """
    ids = torch.stack([torch.randperm(vocab_size)[:listed] for _ in range(num_rows)]).to(device, torch.int32)

    def filled(value: float) -> Tensor:
        return torch.full((num_rows,), value, device=device)

    def starts(width: int) -> Tensor:
        return torch.arange(num_rows + 1, dtype=torch.int32, device=device) * width

    words = (num_rows, -(-vocab_size // 32))
    bitmask = torch.randint(-(2**31), 2**31, words, dtype=torch.int32, device=device) if masked else None
    return OpCall(
        "apply_penalties",
        {
            "logits": torch.randn(num_rows, vocab_size, device=device) * 3, "row_start_loc": starts(listed),
            "token_ids": ids.flatten(), "counts": ids.flatten() % 4, "repetition": filled(1.25),
            "frequency": filled(0.5), "presence": filled(0.25), "bias_start_loc": starts(8),
            "bias_ids": ids[:, :8].flatten(), "biases": torch.randn(8 * num_rows, device=device),
            "ending_start_loc": starts(2), "ending_ids": ids[:, 8:10].flatten(), "bitmask": bitmask,
        },
        num_bytes=num_rows * (72 * (listed + 8) + 36 * 2 + (vocab_size / 8 if masked else 0)),
        in_place=("logits",),
    )  # fmt: skip


def block_copies(
    op: str,
    num_pairs: int,
    *,
    device: torch.device,
    dtype: torch.dtype,
    page: int = 64,
    num_kv_heads: int = 8,
    head_dim: int = 128,
) -> OpCall:
    """copy_blocks inside a layer's caches, or swap_blocks from a cache to the host's memory."""
    shape = (2 * num_pairs, page, num_kv_heads, head_dim)
    pairs = torch.randperm(2 * num_pairs).view(num_pairs, 2)
    source = torch.randn(shape, device=device, dtype=dtype)
    if op == "copy_blocks":
        arguments = {"key_cache": source, "value_cache": torch.randn_like(source), "block_pairs": pairs.to(device)}
        return OpCall(op, arguments, 2 * source.nbytes, in_place=("key_cache", "value_cache"), exact=True)
    destination = torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda")
    arguments = {"source": source, "destination": destination, "block_pairs": pairs}
    return OpCall(op, arguments, source.nbytes, in_place=("destination",), exact=True)

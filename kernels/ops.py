"""The ops of the engine: one checked host function each, one torch.library node each (`kernels.registry`).

The device of the tensors decides what runs: CPU tensors go to `kernels.cpu`, CUDA tensors to `kernels.triton`.
Semantics are those of `kernels.reference`.
"""

import torch
from torch import Tensor

from kernels import checks
from kernels.registry import IMPLEMENTATIONS as IMPLEMENTATIONS


def paged_attention(
    query: Tensor,  # [num_tokens, num_query_heads, head_dim], may be a view of packed QKV
    key_cache: Tensor,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_cache: Tensor,
    block_table: Tensor,  # int32 [num_requests, max_blocks]
    seq_lens: Tensor,  # int32 [num_requests], this step's tokens included
    query_start_loc: Tensor,  # int32 [num_requests + 1]
    *,
    scale: float,
    max_query_len: int,
    causal: bool = True,
    window: int = 0,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,  # float32 [num_query_heads]
    sinks: Tensor | None = None,  # float32 [num_query_heads]
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> Tensor:
    """Attention of each request's new tokens over its paged context: a contiguous tensor like `query`.

    max_query_len is at least the longest query. Rows that belong to no request come back undefined.
    """
    checks.tensor("query", query, (None, None, None), checks.ACTIVATION_DTYPES, query, contiguous=False)
    num_requests, num_heads = seq_lens.numel(), query.shape[1]
    checks.kv_caches(key_cache, value_cache, query, head_dim=query.shape[2])
    if num_heads % key_cache.shape[2]:
        raise ValueError(f"query has {num_heads} heads, no multiple of key_cache's {key_cache.shape[2]}")
    checks.tensor("block_table", block_table, (num_requests, None), torch.int32, query, contiguous=False)
    checks.tensor("seq_lens", seq_lens, (num_requests,), torch.int32, query)
    checks.tensor("query_start_loc", query_start_loc, (num_requests + 1,), torch.int32, query)
    for name, per_head in (("alibi_slopes", alibi_slopes), ("sinks", sinks)):
        if per_head is not None:
            checks.tensor(name, per_head, (num_heads,), torch.float32, query)
    checks.not_negative(window=window, softcap=softcap, max_query_len=max_query_len)
    for name, value in (("scale", scale), ("k_scale", k_scale), ("v_scale", v_scale)):
        checks.positive(name, value)
    out: Tensor = torch.ops.conveyor.paged_attention(
        query, key_cache, value_cache, block_table, seq_lens, query_start_loc, scale=scale,
        max_query_len=max_query_len, causal=causal, window=window, softcap=softcap, alibi_slopes=alibi_slopes,
        sinks=sinks, k_scale=k_scale, v_scale=v_scale,
    )  # fmt: skip
    return out


def varlen_attention(
    query: Tensor,  # [num_tokens, num_query_heads, head_dim], may be a view of packed QKV, as key and value
    key: Tensor,  # [num_tokens, num_kv_heads, head_dim]
    value: Tensor,
    query_start_loc: Tensor,  # int32 [num_requests + 1]
    *,
    scale: float,
    max_query_len: int,
    causal: bool = True,
    window: int = 0,
    softcap: float = 0.0,
    sinks: Tensor | None = None,  # float32 [num_query_heads]
) -> Tensor:
    """Attention of each request's tokens over themselves, without a cache: a contiguous tensor like `query`.

    max_query_len is at least the longest request. Rows that belong to no request come back undefined.
    """
    checks.tensor("query", query, (None, None, None), checks.ACTIVATION_DTYPES, query, contiguous=False)
    num_tokens, num_heads, head_dim = query.shape
    checks.tensor("key", key, (num_tokens, None, head_dim), query.dtype, query, contiguous=False)
    checks.tensor("value", value, tuple(key.shape), query.dtype, query, contiguous=False)
    if num_heads % key.shape[1]:
        raise ValueError(f"query has {num_heads} heads, no multiple of key's {key.shape[1]}")
    checks.tensor("query_start_loc", query_start_loc, (None,), torch.int32, query)
    if sinks is not None:
        checks.tensor("sinks", sinks, (num_heads,), torch.float32, query)
    checks.not_negative(window=window, softcap=softcap, max_query_len=max_query_len)
    checks.positive("scale", scale)
    out: Tensor = torch.ops.conveyor.varlen_attention(
        query, key, value, query_start_loc, scale=scale, max_query_len=max_query_len, causal=causal, window=window,
        softcap=softcap, sinks=sinks,
    )  # fmt: skip
    return out


def rope_and_cache_write(
    query: Tensor,  # [num_tokens, num_query_heads, head_dim], may be a view of packed QKV, as key and value
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
    checks.tensor("query", query, (None, None, None), checks.ACTIVATION_DTYPES, query, contiguous=False)
    num_tokens, _, head_dim = query.shape
    checks.kv_caches(key_cache, value_cache, query, head_dim)
    new_kv = (num_tokens, key_cache.shape[2], head_dim)
    checks.tensor("key", key, new_kv, query.dtype, query, contiguous=False)
    checks.tensor("value", value, new_kv, query.dtype, query, contiguous=False)
    checks.tensor("rope_rows", rope_rows, (num_tokens,), checks.INDEX_DTYPES, query)
    checks.tensor("slot_mapping", slot_mapping, (num_tokens,), torch.int64, query)
    if cos_sin is not None:
        checks.tensor("cos_sin", cos_sin, (None, None), torch.float32, query)
        if cos_sin.shape[1] % 2 or cos_sin.shape[1] > head_dim:
            raise ValueError(f"cos_sin must be even and at most head_dim {head_dim} wide, got {cos_sin.shape[1]}")
    for name, weight in (("q_norm_weight", q_norm_weight), ("k_norm_weight", k_norm_weight)):
        if weight is not None:
            checks.tensor(name, weight, (head_dim,), checks.ACTIVATION_DTYPES, query)
    checks.positive("k_scale", k_scale)
    checks.positive("v_scale", v_scale)
    torch.ops.conveyor.rope_and_cache_write(
        query, key, value, cos_sin, rope_rows, key_cache, value_cache, slot_mapping, q_norm_weight=q_norm_weight,
        k_norm_weight=k_norm_weight, eps=eps, norm_one_plus=norm_one_plus, interleaved=interleaved,
        k_scale=k_scale, v_scale=v_scale,
    )  # fmt: skip


def rms_norm(x: Tensor, weight: Tensor, eps: float, one_plus: bool = False) -> Tensor:
    """x / rms(x) · weight (or 1 + weight) for x [num_tokens, hidden]."""
    checks.tensor("x", x, (None, None), checks.ACTIVATION_DTYPES, x)
    checks.tensor("weight", weight, (x.shape[1],), checks.ACTIVATION_DTYPES, x)
    out: Tensor = torch.ops.conveyor.rms_norm(x, weight, eps, one_plus)
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, one_plus: bool = False) -> Tensor:
    """residual += x in place; returns the RMS norm of that sum, for x and residual [num_tokens, hidden]."""
    checks.tensor("x", x, (None, None), checks.ACTIVATION_DTYPES, x)
    checks.tensor("residual", residual, tuple(x.shape), x.dtype, x)
    checks.tensor("weight", weight, (x.shape[1],), checks.ACTIVATION_DTYPES, x)
    out: Tensor = torch.ops.conveyor.add_rms_norm(x, residual, weight, eps, one_plus)
    return out


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """(x - mean) / sqrt(variance + eps) · weight + bias for x [num_tokens, hidden]."""
    checks.tensor("x", x, (None, None), checks.ACTIVATION_DTYPES, x)
    checks.tensor("weight", weight, (x.shape[1],), checks.ACTIVATION_DTYPES, x)
    if bias is not None:
        checks.tensor("bias", bias, (x.shape[1],), weight.dtype, x)
    out: Tensor = torch.ops.conveyor.layer_norm(x, weight, bias, eps)
    return out


def _check_gate_up(gate_up: Tensor) -> None:
    checks.tensor("gate_up", gate_up, (None, None), checks.ACTIVATION_DTYPES, gate_up)
    if gate_up.shape[1] % 2:
        raise ValueError(f"gate_up must have an even width, got {gate_up.shape[1]}")


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) · up for gate_up [num_tokens, 2 · width], the gate first."""
    _check_gate_up(gate_up)
    out: Tensor = torch.ops.conveyor.silu_and_mul(gate_up)
    return out


def gelu_and_mul(gate_up: Tensor, approximate: str) -> Tensor:
    """gelu(gate) · up for gate_up [num_tokens, 2 · width], the gate first."""
    _check_gate_up(gate_up)
    if approximate not in ("tanh", "none"):
        raise ValueError(f'approximate must be "tanh" or "none", got {approximate!r}')
    out: Tensor = torch.ops.conveyor.gelu_and_mul(gate_up, approximate)
    return out


def apply_penalties(
    logits: Tensor,  # float32 [num_rows, vocab], changed in place
    row_start_loc: Tensor,  # int32 [num_rows + 1]: row r owns token_ids[row_start_loc[r] : row_start_loc[r + 1]]
    token_ids: Tensor,  # int32 [num]: tokens of prompt and output, distinct within a row
    counts: Tensor,  # int32 [num]: times in the output; 0: in the prompt only
    repetition: Tensor,  # float32 [num_rows]; 1: off
    frequency: Tensor,  # float32 [num_rows]; 0: off
    presence: Tensor,  # float32 [num_rows]; 0: off
    bias_start_loc: Tensor,  # int32 [num_rows + 1]
    bias_ids: Tensor,  # int32 [num_biases], distinct within a row
    biases: Tensor,  # float32 [num_biases]
    ending_start_loc: Tensor,  # int32 [num_rows + 1]
    ending_ids: Tensor,  # int32 [num_ending]: may not be drawn yet
    bitmask: Tensor | None = None,  # int32 [num_rows, ceil(vocab / 32)]: set bits may be drawn
) -> None:
    """Penalties, biases and masks on the logits, in place; see `kernels.reference.apply_penalties` for the rule."""
    checks.tensor("logits", logits, (None, None), torch.float32, logits)
    num_rows, vocab = logits.shape
    for name, starts in (
        ("row_start_loc", row_start_loc), ("bias_start_loc", bias_start_loc), ("ending_start_loc", ending_start_loc)
    ):  # fmt: skip
        checks.tensor(name, starts, (num_rows + 1,), torch.int32, logits)
    for name, ids in (("token_ids", token_ids), ("bias_ids", bias_ids), ("ending_ids", ending_ids)):
        checks.tensor(name, ids, (None,), torch.int32, logits)
    checks.tensor("counts", counts, tuple(token_ids.shape), torch.int32, logits)
    checks.tensor("biases", biases, tuple(bias_ids.shape), torch.float32, logits)
    for name, value in (("repetition", repetition), ("frequency", frequency), ("presence", presence)):
        checks.tensor(name, value, (num_rows,), torch.float32, logits)
    if bitmask is not None:
        checks.tensor("bitmask", bitmask, (num_rows, -(-vocab // 32)), torch.int32, logits)
    torch.ops.conveyor.apply_penalties(
        logits, row_start_loc, token_ids, counts, repetition, frequency, presence, bias_start_loc, bias_ids, biases,
        ending_start_loc, ending_ids, bitmask,
    )  # fmt: skip


def sample(
    logits: Tensor,  # float32 [num_rows, vocab]
    temperature: Tensor,  # float32 [num_rows]; below 1e-5: greedy
    top_k: Tensor,  # int32 [num_rows]; 0: off
    top_p: Tensor,  # float32 [num_rows]; 1: off
    min_p: Tensor,  # float32 [num_rows]; 0: off
    seeds: Tensor,  # int64 [num_rows]
    choices: Tensor,  # int32 [num_rows]
    positions: Tensor,  # int32 [num_rows]: tokens before the sampled one
) -> Tensor:
    """One token id per row, int64 [num_rows]; see `kernels.reference.sample` for the rule."""
    checks.tensor("logits", logits, (None, None), torch.float32, logits)
    rows = (logits.shape[0],)
    for name, value in (("temperature", temperature), ("top_p", top_p), ("min_p", min_p)):
        checks.tensor(name, value, rows, torch.float32, logits)
    for name, value in (("top_k", top_k), ("choices", choices), ("positions", positions)):
        checks.tensor(name, value, rows, torch.int32, logits)
    checks.tensor("seeds", seeds, rows, torch.int64, logits)
    out: Tensor = torch.ops.conveyor.sample(logits, temperature, top_k, top_p, min_p, seeds, choices, positions)
    return out


def copy_blocks(
    key_cache: Tensor,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_cache: Tensor,
    block_pairs: Tensor,  # int64 [num_pairs, 2]: (source, destination)
) -> None:
    """Copies blocks inside one layer's caches, for a prefix that is written to: copy-on-write.

    Destinations are distinct, and none of them is a source.
    """
    checks.tensor("key_cache", key_cache, (None, None, None, None), checks.CACHE_DTYPES, key_cache)
    checks.tensor("value_cache", value_cache, tuple(key_cache.shape), key_cache.dtype, key_cache)
    checks.tensor("block_pairs", block_pairs, (None, 2), torch.int64, key_cache)
    torch.ops.conveyor.copy_blocks(key_cache, value_cache, block_pairs)


def swap_blocks(
    source: Tensor,  # [num_blocks, block_size, num_kv_heads, head_dim], a cache
    destination: Tensor,  # the same but for num_blocks and the device
    block_pairs: Tensor,  # int64 [num_pairs, 2] in host memory: (source, destination)
) -> None:
    """Copies blocks of one cache into another, between a device and pinned host memory: offload and its way back.

    Destinations are distinct. Between devices the copies are queued on the current stream: whoever reads host memory,
    or reuses it, waits for that stream first.
    """
    checks.tensor("source", source, (None, None, None, None), checks.CACHE_DTYPES, source)
    checks.tensor("destination", destination, (None, *source.shape[1:]), source.dtype, destination)
    checks.tensor("block_pairs", block_pairs, (None, 2), torch.int64, block_pairs)
    if block_pairs.device.type != "cpu":
        raise ValueError(f"block_pairs must be on cpu, got {block_pairs.device}: the host queues the copies")
    if source.device != destination.device:
        for name, cache in (("source", source), ("destination", destination)):
            if cache.device.type == "cpu" and not cache.is_pinned():
                raise ValueError(f"{name} must be pinned memory: a copy from or to other memory blocks the host")
    torch.ops.conveyor.swap_blocks(source, destination, block_pairs)

"""The ops of the engine: one checked host function each, one torch.library node each (`conveyor::<op>`).

The device of the tensors decides what runs: CPU tensors go to `kernels.cpu`, CUDA tensors to `kernels.triton`.
Both are imported at the first call, so a machine without Triton (or numba) imports this module all the same.
Semantics are those of `kernels.reference`.
"""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernels import checks

# op -> the modules of kernels.cpu and of kernels.triton that hold a function of its name and signature
IMPLEMENTATIONS = {
    "paged_attention": ("paged_attention", "paged_attention"),
    "rope_and_cache_write": ("rope_and_cache_write", "rope_and_cache_write"),
    "rms_norm": ("norms", "rms_norm"),
    "add_rms_norm": ("norms", "rms_norm"),
    "layer_norm": ("norms", "layer_norm"),
    "silu_and_mul": ("activation", "activation"),
    "gelu_and_mul": ("activation", "activation"),
    "sample": ("sample", "sample"),
}

_LIBRARY = torch.library.Library("conveyor", "DEF")


def _imported_at_call(module: str, op: str) -> Callable[..., Any]:
    """The function `op` of a module that is imported when first needed."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return getattr(importlib.import_module(module), op)(*args, **kwargs)

    return call


def _register(op: str, schema: str, fake: Callable[..., Any]) -> None:
    """Defines conveyor::<op> for CPU and CUDA tensors; `fake` makes its output without data."""
    cpu, triton = IMPLEMENTATIONS[op]
    _LIBRARY.define(op + schema)
    _LIBRARY.impl(op, _imported_at_call(f"kernels.cpu.{cpu}", op), "CPU")
    _LIBRARY.impl(op, _imported_at_call(f"kernels.triton.{triton}", op), "CUDA")
    torch.library.register_fake(f"conveyor::{op}", fake, lib=_LIBRARY)


def _like_first(x: Tensor, *args: Any, **options: Any) -> Tensor:
    return x.new_empty(x.shape)


def _half_width(gate_up: Tensor, *args: Any) -> Tensor:
    return gate_up.new_empty(gate_up.shape[0], gate_up.shape[1] // 2)


_register(
    "paged_attention",
    "(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_table, Tensor seq_lens, "
    "Tensor query_start_loc, *, float scale, int max_query_len, bool causal=True, int window=0, float softcap=0.0, "
    "Tensor? alibi_slopes=None, Tensor? sinks=None, float k_scale=1.0, float v_scale=1.0) -> Tensor",
    _like_first,
)
_register(
    "rope_and_cache_write",
    "(Tensor(a!) query, Tensor(b!) key, Tensor value, Tensor? cos_sin, Tensor rope_rows, Tensor(c!) key_cache, "
    "Tensor(d!) value_cache, Tensor slot_mapping, *, Tensor? q_norm_weight=None, Tensor? k_norm_weight=None, "
    "float eps=1e-6, bool norm_one_plus=False, bool interleaved=False, float k_scale=1.0, float v_scale=1.0) -> ()",
    lambda *args, **options: None,
)
_register("rms_norm", "(Tensor x, Tensor weight, float eps, bool one_plus=False) -> Tensor", _like_first)
_register(
    "add_rms_norm",
    "(Tensor x, Tensor(a!) residual, Tensor weight, float eps, bool one_plus=False) -> Tensor",
    _like_first,
)
_register("layer_norm", "(Tensor x, Tensor weight, Tensor? bias, float eps) -> Tensor", _like_first)
_register("silu_and_mul", "(Tensor gate_up) -> Tensor", _half_width)
_register("gelu_and_mul", "(Tensor gate_up, str approximate) -> Tensor", _half_width)
_register(
    "sample",
    "(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p, Tensor seeds, Tensor choices, "
    "Tensor positions) -> Tensor",
    lambda logits, *args: logits.new_empty(logits.shape[0], dtype=torch.int64),
)


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
    if window < 0 or softcap < 0 or max_query_len < 0:
        raise ValueError(f"none may be negative: window={window}, softcap={softcap}, max_query_len={max_query_len}")
    for name, value in (("scale", scale), ("k_scale", k_scale), ("v_scale", v_scale)):
        checks.positive(name, value)
    out: Tensor = torch.ops.conveyor.paged_attention(
        query, key_cache, value_cache, block_table, seq_lens, query_start_loc, scale=scale,
        max_query_len=max_query_len, causal=causal, window=window, softcap=softcap, alibi_slopes=alibi_slopes,
        sinks=sinks, k_scale=k_scale, v_scale=v_scale,
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

"""The torch.library node of each op (`conveyor::<op>`), and which module computes it on which device.

Implementations are imported at their first call, so a machine without Triton (or numba) imports this all the same.
"""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# op -> the modules of kernels.cpu and of kernels.triton that hold a function of its name and signature
IMPLEMENTATIONS = {
    "paged_attention": ("paged_attention", "paged_attention"),
    "varlen_attention": ("varlen_attention", "varlen_attention"),
    "rope_and_cache_write": ("rope_and_cache_write", "rope_and_cache_write"),
    "rms_norm": ("norms", "rms_norm"),
    "add_rms_norm": ("norms", "rms_norm"),
    "layer_norm": ("norms", "layer_norm"),
    "silu_and_mul": ("activation", "activation"),
    "gelu_and_mul": ("activation", "activation"),
    "apply_penalties": ("apply_penalties", "apply_penalties"),
    "sample": ("sample", "sample"),
    "copy_blocks": ("cache_blocks", "cache_blocks"),
    "swap_blocks": ("cache_blocks", "cache_blocks"),
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


def _nothing(*args: Any, **options: Any) -> None:
    return None


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
    "varlen_attention",
    "(Tensor query, Tensor key, Tensor value, Tensor query_start_loc, *, float scale, int max_query_len, "
    "bool causal=True, int window=0, float softcap=0.0, Tensor? sinks=None) -> Tensor",
    _like_first,
)
_register(
    "rope_and_cache_write",
    "(Tensor(a!) query, Tensor(b!) key, Tensor value, Tensor? cos_sin, Tensor rope_rows, Tensor(c!) key_cache, "
    "Tensor(d!) value_cache, Tensor slot_mapping, *, Tensor? q_norm_weight=None, Tensor? k_norm_weight=None, "
    "float eps=1e-6, bool norm_one_plus=False, bool interleaved=False, float k_scale=1.0, float v_scale=1.0) -> ()",
    _nothing,
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
    "apply_penalties",
    "(Tensor(a!) logits, Tensor row_start_loc, Tensor token_ids, Tensor counts, Tensor repetition, Tensor frequency, "
    "Tensor presence, Tensor bias_start_loc, Tensor bias_ids, Tensor biases, Tensor ending_start_loc, "
    "Tensor ending_ids, Tensor? bitmask=None) -> ()",
    _nothing,
)
_register(
    "sample",
    "(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p, Tensor seeds, Tensor choices, "
    "Tensor positions) -> Tensor",
    lambda logits, *args: logits.new_empty(logits.shape[0], dtype=torch.int64),
)
_register("copy_blocks", "(Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor block_pairs) -> ()", _nothing)
_register("swap_blocks", "(Tensor source, Tensor(a!) destination, Tensor block_pairs) -> ()", _nothing)

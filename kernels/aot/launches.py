"""Kernel launches as the host functions make them: run on meta tensors, caught before anything is compiled."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from kernels.aot.models import ModelShape
from kernels.triton import (
    activation,
    apply_penalties,
    cache_blocks,
    configs,
    layer_norm,
    paged_attention,
    rms_norm,
    rope_and_cache_write,
    sample,
    varlen_attention,
)

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32), "sm_90": GPUTarget("cuda", 90, 32), "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}  # fmt: skip
_TYPES = {
    torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.int32: "i32", torch.int64: "i64",
    torch.float8_e4m3fn: "fp8e4nv", torch.uint8: "u8",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Launch:
    """One specialisation of a kernel: what the launcher would compile."""

    arch: str
    model: str
    kernel: Any  # a JITFunction
    signature: Mapping[str, str]  # argument -> type
    constants: Mapping[str, Any]  # argument -> value compiled in
    divisible: tuple[int, ...]  # indices of arguments known to be multiples of 16
    options: Mapping[str, Any]  # the compiler's
    variant: int = 1  # of several launches of one kernel by one model

    @property
    def kind(self) -> str:
        """The kernel's short name: extend, decode, rms_norm, …"""
        return str(self.kernel.__name__).strip("_").removesuffix("_kernel")

    @property
    def name(self) -> str:
        return f"{self.arch} · {self.model} · {self.kind}" + (f" {self.variant}" if self.variant > 1 else "")

    @property
    def is_attention(self) -> bool:
        return self.kind in ("extend", "varlen", "decode")

    @property
    def kv_type(self) -> str:
        """Of attention: the type of the keys and values, such as *bf16."""
        return self.signature["key" if self.kind == "varlen" else "key_cache"]

    @property
    def source(self) -> ASTSource:
        attributes = {(i,): [["tt.divisibility", 16]] for i in self.divisible}
        return ASTSource(fn=self.kernel, signature=self.signature, constexprs=self.constants, attrs=attributes)

    def flag(self, name: str) -> bool:
        return bool(self.constants.get(name, False))


def launches(arch: str, model: ModelShape) -> list[Launch]:
    """Every different kernel specialisation that a layer, and the sampling after the last, of this model needs."""
    caught: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def catch(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        caught.append((kernel, args, kwargs))

    with mock.patch.object(JITFunction, "run", catch), mock.patch.object(configs, "architecture", lambda device: arch):
        _run_layer(model)
    found: list[Launch] = []
    for kernel, args, kwargs in caught:
        variant = 1 + sum(launch.kernel is kernel for launch in found)
        launch = _specialise(arch, model.name, kernel, args, kwargs, variant)
        if not any(_same_code(launch, other) for other in found):
            found.append(launch)
    return found


def _same_code(one: Launch, other: Launch) -> bool:
    return one.kernel is other.kernel and (one.signature, one.constants, one.divisible, one.options) == (
        other.signature, other.constants, other.divisible, other.options
    )  # fmt: skip


def _specialise(arch: str, model: str, kernel: Any, args: Any, kwargs: dict[str, Any], variant: int) -> Launch:
    """What the launcher makes of the arguments: None, 1 and constexprs are compiled in, alignment is noted.

    The rules are those of Triton's own launcher, but for tensors below 2 GiB on AMD, which it would tell apart: a
    cache is larger.
    """
    values = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
    signature, constants, divisible = {}, {}, []
    for i, parameter in enumerate(kernel.params):
        value = values.pop(parameter.name)
        is_one = isinstance(value, int) and not isinstance(value, bool) and value == 1
        if parameter.is_constexpr or value is None or (is_one and not parameter.do_not_specialize):
            signature[parameter.name], constants[parameter.name] = "constexpr", value
            continue
        signature[parameter.name] = _type_name(value)
        told = not (parameter.do_not_specialize or parameter.do_not_specialize_on_alignment)
        if told and _is_multiple_of_16(value):
            divisible.append(i)
    return Launch(arch, model, kernel, signature, constants, tuple(divisible), values, variant)


def _type_name(value: Tensor | float) -> str:
    if isinstance(value, Tensor):
        return "*" + _TYPES[value.dtype]
    if isinstance(value, bool):
        return "u1"
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def _is_multiple_of_16(value: Tensor | float) -> bool:
    """An integer, or the address of a tensor whose storage is aligned, as torch's allocations are."""
    if isinstance(value, Tensor):
        return value.storage_offset() * value.element_size() % 16 == 0
    return isinstance(value, int) and not isinstance(value, bool) and value % 16 == 0


def _run_layer(model: ModelShape) -> None:
    """Calls the host functions of one layer, then those of sampling, on tensors that hold nothing."""
    empty = functools.partial(torch.empty, device="meta", dtype=getattr(torch, model.dtype))
    _run_attention(model, empty)
    hidden, gain = empty(8, model.hidden), empty(model.hidden)
    if model.norm == "layer":
        layer_norm.layer_norm(hidden, gain, gain, 1e-6)
    else:
        rms_norm.rms_norm(hidden, gain, 1e-6, model.norm == "rms_one_plus")
        rms_norm.add_rms_norm(hidden, hidden, gain, 1e-6, model.norm == "rms_one_plus")
    if model.intermediate and model.activation == "silu":
        activation.silu_and_mul(empty(8, 2 * model.intermediate))
    elif model.intermediate:
        approximate = "tanh" if model.activation == "gelu_tanh" else "none"
        activation.gelu_and_mul(empty(8, 2 * model.intermediate), approximate)
    if model.vocab:
        _run_sampling(model, empty)


def _run_attention(model: ModelShape, empty: Callable[..., Tensor]) -> None:
    int32, int64, float32 = torch.int32, torch.int64, torch.float32
    tokens, heads, kv_heads, head_dim = 8, model.heads, model.kv_heads, model.head_dim
    qkv = empty(tokens, heads + 2 * kv_heads, head_dim)
    query, key, value = qkv.split([heads, kv_heads, kv_heads], dim=1)
    dtype = torch.float8_e4m3fn if model.fp8_kv else qkv.dtype
    keys, values = (empty(9, model.page, kv_heads, head_dim, dtype=dtype) for _ in "kv")
    table, seq_lens = empty(4, model.context // model.page, dtype=int32), empty(4, dtype=int32)
    starts = empty(5, dtype=int32)
    per_head = empty(heads, dtype=float32)
    sinks = per_head if model.sinks else None
    masks: dict[str, Any] = {"window": model.window, "softcap": model.softcap, "sinks": sinks}
    paged_attention.paged_attention(
        query, keys, values, table, seq_lens, starts, scale=0.1, max_query_len=64,
        alibi_slopes=per_head if model.alibi else None, **masks,
    )  # fmt: skip
    if model.varlen:
        causal = model.varlen == "decoder"
        varlen_attention.varlen_attention(
            query, key, value, starts, scale=0.1, max_query_len=64, causal=causal, **masks
        )  # fmt: skip
    cache_blocks.copy_blocks(keys, values, empty(3, 2, dtype=int64))
    rotary = head_dim if model.rotary is None else model.rotary
    head_norm = empty(head_dim) if model.qk_norm else None
    rope_and_cache_write.rope_and_cache_write(
        query, key, value, empty(99, rotary, dtype=float32) if rotary else None, empty(tokens, dtype=int64),
        keys, values, empty(tokens, dtype=int64), q_norm_weight=head_norm, k_norm_weight=head_norm,
        interleaved=model.interleaved, norm_one_plus=model.norm == "rms_one_plus",
    )  # fmt: skip


def _run_sampling(model: ModelShape, empty: Callable[..., Tensor]) -> None:
    int32, int64, float32 = torch.int32, torch.int64, torch.float32
    logits, bitmask = empty(8, model.vocab, dtype=float32), empty(8, -(-model.vocab // 32), dtype=int32)
    starts, ids, weights = empty(9, dtype=int32), empty(99, dtype=int32), empty(99, dtype=float32)
    per_row = empty(8, dtype=float32)
    for mask in (None, bitmask):
        apply_penalties.apply_penalties(
            logits, starts, ids, ids, per_row, per_row, per_row, starts, ids, weights, starts, ids, mask
        )  # fmt: skip
    rows = [empty(8, dtype=kind) for kind in (float32, int32, float32, float32, int64, int32, int32)]
    sample.sample(logits, *rows)

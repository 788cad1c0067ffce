"""The shapes that kernels are timed at, with the goal of each where there is one: time over floor on an H200."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from bench import kernel_inputs
from bench.kernel_inputs import Build

VOCAB_SIZE = 128256


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    build: Build
    goal: float | None = None            # of time over floor, or over the time of the row `against`
    against: str | None = None


def goal_rows(device: torch.device, *, tiny: bool = False) -> list[Row]:
    """Query heads 32, KV heads 8, head_dim 128, pages of 64 where a name says nothing else.

    Tiny shapes are a sixteenth in their longest dimension and have no goals: they show that a row runs.
    """
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    on = {"device": device, "dtype": dtype}
    rows = [*_attention_rows(on, tiny), *_memory_rows(on, tiny), *_sample_rows(device, tiny)]
    return [Row(row.name, row.build, None, row.against) for row in rows] if tiny else rows


def _attention_rows(on: dict[str, Any], tiny: bool) -> list[Row]:
    part = 16 if tiny else 1

    def decode(batch: int, context: int, query_len: int = 1, **options: Any) -> Build:
        batch = max(1, batch // part)
        return partial(kernel_inputs.attention, [query_len] * batch, [context // part] * batch, **on, **options)

    def extend(new: int, context: int, **options: Any) -> Build:
        return partial(kernel_inputs.attention, [new // part], [context // part], **on, **options)

    base = "decode B64 L2k"
    rows = [
        Row(base, decode(64, 2048), 1.15),
        Row("decode B256 L1k", decode(256, 1024), 1.12),
        Row("decode B8 L8k", decode(8, 8192), 1.20),
        Row("decode B1 L32k", decode(1, 32768), 1.35),
        Row("decode B64 L2k page 16", decode(64, 2048, page=16), 1.05, against=base),
        Row("decode B64 L2k page 1", decode(64, 2048, page=1), 1.20, against=base),
        Row("decode B64 L2k GQA 7", decode(64, 2048, num_query_heads=28, num_kv_heads=4)),
        Row("decode B64 L2k head_dim 64", decode(64, 2048, head_dim=64)),
        Row("decode B64 L2k head_dim 256", decode(64, 2048, head_dim=256)),
        Row("decode B64 L2k MHA 40", decode(64, 2048, num_query_heads=40, num_kv_heads=40)),
        Row("decode B64 L2k softcap", decode(64, 2048, softcap=30.0)),
        Row("verify 4 tokens B64 L2k", decode(64, 2048, query_len=4)),
        Row("prefill 8k causal", extend(8192, 8192), 1.9),
        Row("512-token chunk over 16k", extend(512, 16384), 2.0),
        Row("encoder 16 x 512", partial(kernel_inputs.varlen, [512 // part] * 16, **on)),
    ]
    if on["device"].type == "cuda":      # the CPU's kernels compute in float32
        fp8 = decode(64, 2048, cache_dtype=torch.float8_e4m3fn, k_scale=0.5, v_scale=2.0)
        rows.insert(4, Row("decode B64 L2k fp8 KV", fp8, 1.25))
    return rows


def _memory_rows(on: dict[str, Any], tiny: bool) -> list[Row]:
    num_tokens = 256 if tiny else 4096
    norm: Callable[..., Build] = partial(partial, kernel_inputs.norm)
    gated: Callable[..., Build] = partial(partial, kernel_inputs.gated)
    return [
        Row("rms_norm 4k x 4096", norm("rms_norm", num_tokens, 4096, **on), 1.15),
        Row("add_rms_norm 4k x 4096", norm("add_rms_norm", num_tokens, 4096, **on), 1.15),
        Row("layer_norm 4k x 5120", norm("layer_norm", num_tokens, 5120, **on), 1.15),
        Row("silu_and_mul 4k x 14336", gated("silu_and_mul", num_tokens, 14336, **on), 1.15),
        Row("gelu_and_mul 4k x 14336", gated("gelu_and_mul", num_tokens, 14336, approximate="tanh", **on), 1.15),
        Row("rope_and_cache_write 4k", partial(kernel_inputs.rope_write, num_tokens, **on), 1.15),
        Row("copy_blocks 256", partial(kernel_inputs.block_copies, "copy_blocks", num_tokens // 16, **on)),
    ]


def _sample_rows(device: torch.device, tiny: bool) -> list[Row]:
    size = (16, VOCAB_SIZE // 16) if tiny else (256, VOCAB_SIZE)
    draw = partial(kernel_inputs.sampling, *size, device=device)
    return [
        Row("apply_penalties B256, 1k tokens", partial(kernel_inputs.penalties, *size, device=device, listed=1000)),
        Row("sample B256 greedy", partial(draw, temperature=0.0)),
        Row("sample B256 temperature", draw),
        Row("sample B256 top-k 50, top-p 0.9", partial(draw, top_k=50, top_p=0.9)),
    ]

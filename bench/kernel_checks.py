"""Every op against its float64 reference, on small inputs that hold NaN wherever an op has no business."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bench import kernel_inputs
from bench.kernel_inputs import Build, OpCall
from kernels import reference
from kernels.testing import assert_close, attention_case, nan_allocations

_NUM_TOKENS, _HIDDEN = 37, 320
_LONGEST_SUM = 512                       # terms of the longest sum in any check
FP8 = torch.float8_e4m3fn


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    build: Build


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found; `error` is the largest error over the largest magnitude."""

    name: str
    op: str
    error: float
    failure: str | None                  # None: within what the arithmetic allows


def run_check(check: Check) -> Finding:
    """Run the op and its reference on equal inputs and compare all that they return or write."""
    call = check.build()
    expected_call = replace(call, arguments={name: _copy(value) for name, value in call.arguments.items()})
    expected = _outputs(expected_call, getattr(reference, call.op)(**expected_call.arguments))
    with nan_allocations():
        found = _outputs(call, call())
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()         # a result may be on its way to the host
    error, failure = 0.0, None
    for (name, actual), truth in zip(found.items(), expected.values(), strict=True):
        try:
            actual, truth = _allowed(name, actual, truth)
            error = max(error, _relative_error(actual, truth))
            if call.exact:
                assert torch.equal(actual, truth), f"{name} differs in {int((actual != truth).sum())} places"
            else:
                assert_close(actual, truth, _LONGEST_SUM, name)
        except AssertionError as unequal:
            failure = failure or str(unequal)
    return Finding(check.name, call.op, error, failure)


def checks(device: torch.device) -> list[Check]:
    """Checks of every op in every dtype that `device` computes in."""
    with_fp8 = device.type != "cpu"      # the CPU's kernels know float32 alone
    dtypes = (torch.float32, torch.float16, torch.bfloat16) if with_fp8 else (torch.float32,)
    draw = partial(kernel_inputs.sampling, 33, 1000, device=device)
    penalise = partial(kernel_inputs.penalties, 33, 1000, device=device)
    of_rows = [
        Check("apply_penalties", partial(penalise, listed=300)),
        Check("apply_penalties bitmask", partial(penalise, listed=20, masked=True)),
        Check("sample greedy", partial(draw, temperature=0.0)),
        Check("sample temperature", draw),
        Check("sample top-k, top-p, min-p", partial(draw, top_k=50, top_p=0.9, min_p=0.01)),
    ]
    of_dtypes = [
        Check(f"{name} {str(dtype).removeprefix('torch.')}", partial(build, device=device, dtype=dtype))
        for dtype in dtypes
        for name, build in (*_attention(with_fp8), *_others(with_fp8))
    ]
    return of_dtypes + of_rows


def _attention(with_fp8: bool) -> list[tuple[str, Any]]:
    slopes, sinks = torch.rand(14) / 4, torch.randn(14)
    everything = {"num_query_heads": 14, "window": 50, "softcap": 3.0, "alibi_slopes": slopes, "sinks": sinks}
    mixed = [1, 9, 0, 70, 3], [300, 33, 7, 130, 511]
    cases: dict[str, Any] = {
        "attention mixed": partial(_poisoned, *mixed, num_query_heads=8, head_dim=128, page=64),
        "attention decode": partial(_poisoned, [1] * 6, [1, 64, 65, 511, 2, 128], head_dim=128, page=64),
        "attention prefill": partial(_poisoned, [200], [200], num_query_heads=8, head_dim=128, page=64),
        "attention all options, page 1": partial(_poisoned, *mixed, head_dim=64, page=1, **everything),
        "attention not causal, page 12": partial(_poisoned, *mixed, head_dim=80, page=12, causal=False),
        "attention head_dim 96": partial(_poisoned, *mixed, head_dim=96, page=16),
        "attention head_dim 192": partial(_poisoned, *mixed, head_dim=192, page=32),
        "attention head_dim 256": partial(_poisoned, *mixed, head_dim=256, page=128),
    }
    if with_fp8:
        scales = {"cache_dtype": FP8, "k_scale": 0.5, "v_scale": 3.0}
        cases["attention fp8 KV"] = partial(_poisoned, *mixed, head_dim=128, page=64, **scales)
    return list(cases.items())


def _others(with_fp8: bool) -> list[tuple[str, Any]]:
    norm, gated = (partial(partial, build) for build in (kernel_inputs.norm, kernel_inputs.gated))
    lengths, options = [70, 1, 0, 200], {"causal": True, "window": 50, "softcap": 3.0}
    rope = partial(kernel_inputs.rope_write, _NUM_TOKENS, page=16)
    fp8 = [("rope_and_cache_write fp8 KV", partial(rope, cache_dtype=FP8, k_scale=0.5, v_scale=3.0))]
    return [
        ("rms_norm", norm("rms_norm", _NUM_TOKENS, _HIDDEN)),
        ("rms_norm one plus", norm("rms_norm", _NUM_TOKENS, _HIDDEN, one_plus=True)),
        ("add_rms_norm", norm("add_rms_norm", _NUM_TOKENS, _HIDDEN)),
        ("layer_norm", norm("layer_norm", _NUM_TOKENS, _HIDDEN)),
        ("silu_and_mul", gated("silu_and_mul", _NUM_TOKENS, _HIDDEN)),
        ("gelu_and_mul tanh", gated("gelu_and_mul", _NUM_TOKENS, _HIDDEN, approximate="tanh")),
        ("gelu_and_mul erf", gated("gelu_and_mul", _NUM_TOKENS, _HIDDEN, approximate="none")),
        ("rope_and_cache_write", rope),
        ("rope_and_cache_write interleaved", partial(rope, interleaved=True)),
        *(fp8 if with_fp8 else []),
        ("varlen_attention not causal", partial(kernel_inputs.varlen, lengths)),
        ("varlen_attention all options", partial(kernel_inputs.varlen, lengths, head_dim=80, **options)),
        ("copy_blocks", partial(kernel_inputs.block_copies, "copy_blocks", 7, page=12, head_dim=80)),
        ("swap_blocks", partial(kernel_inputs.block_copies, "swap_blocks", 7, page=12, head_dim=80)),
    ]


def _poisoned(
    query_lens: Sequence[int], seq_lens: Sequence[int], *, device: torch.device, dtype: torch.dtype, **options: Any
) -> OpCall:
    """`kernels.testing.attention_case` on a device; the query stays a view with NaN around it."""
    case = attention_case(query_lens, seq_lens, dtype=dtype, **options)
    names = ("query", "key_cache", "value_cache", "block_table", "seq_lens", "query_start_loc")
    arguments: Mapping[str, Any] = dict(zip(names, case.tensors, strict=True)) | case.options
    moved = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in arguments.items()}
    num_tokens, num_heads, head_dim = case.query.shape
    packed = torch.full((num_tokens, num_heads + 2, head_dim), math.nan, device=device, dtype=dtype)
    moved["query"] = packed[:, :num_heads].copy_(case.query)
    return OpCall("paged_attention", moved, 0.0)


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _outputs(call: OpCall, returned: Any) -> dict[str, Tensor]:
    written = {name: call.arguments[name] for name in call.in_place}
    return written if returned is None else {call.op: returned, **written}


def _allowed(name: str, actual: Tensor, expected: Tensor) -> tuple[Tensor, Tensor]:
    """Both without -inf, which must stand in the same places."""
    forbidden = expected.float() == -math.inf
    assert torch.equal(actual.float() == -math.inf, forbidden), f"{name} is not -inf in the right places"
    if not forbidden.any():
        return actual, expected
    return actual.masked_fill(forbidden, 0), expected.masked_fill(forbidden, 0)


def _relative_error(actual: Tensor, expected: Tensor) -> float:
    difference = (actual.double() - expected.double()).abs().max().item()
    return difference / max(expected.double().abs().max().item(), 1e-30)

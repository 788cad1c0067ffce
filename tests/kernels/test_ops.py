"""The host functions: what they refuse and how they say it, what they dispatch to, what a compiler sees of them."""

import importlib
import inspect
import sys

import pytest
import torch

from kernels import ops, reference
from kernels.testing import attention_case

ROWS = 3
PAIRS = torch.tensor([[3, 0], [1, 2]])


def cache():
    return torch.randn(4, 5, 2, 32)


def attention_arguments(**changes):
    case = attention_case([1, 2], [9, 5])
    names = ("query", "key_cache", "value_cache", "block_table", "seq_lens", "query_start_loc")
    return {**dict(zip(names, case.tensors, strict=True)), **case.options, **changes}


def rope_arguments(**changes):
    qkv = torch.randn(ROWS, 8, 32)
    caches = torch.zeros(2, 4, 16, 2, 32)
    arguments = {
        "query": qkv[:, :4], "key": qkv[:, 4:6], "value": qkv[:, 6:], "cos_sin": torch.rand(9, 32),
        "rope_rows": torch.arange(ROWS), "key_cache": caches[0], "value_cache": caches[1],
        "slot_mapping": torch.tensor([3, -1, 40]),
    }  # fmt: skip
    return {**arguments, **changes}


def sample_arguments(**changes):
    arguments = {
        "logits": torch.randn(ROWS, 50), "temperature": torch.ones(ROWS), "top_k": torch.zeros(ROWS, dtype=torch.int32),
        "top_p": torch.ones(ROWS), "min_p": torch.zeros(ROWS), "seeds": torch.arange(ROWS),
        "choices": torch.zeros(ROWS, dtype=torch.int32), "positions": torch.ones(ROWS, dtype=torch.int32),
    }  # fmt: skip
    return {**arguments, **changes}


def varlen_arguments():
    qkv = torch.randn(5, 8, 32)
    starts = torch.tensor([0, 2, 5], dtype=torch.int32)
    return {
        "query": qkv[:, :4], "key": qkv[:, 4:6], "value": qkv[:, 6:], "query_start_loc": starts, "scale": 0.2,
        "max_query_len": 3, "causal": False, "window": 2, "softcap": 3.0, "sinks": torch.randn(4),
    }  # fmt: skip


def penalties_arguments():
    starts, ids = torch.tensor([0, 2, 2, 3], dtype=torch.int32), torch.tensor([4, 49, 0], dtype=torch.int32)
    return {
        "logits": torch.randn(ROWS, 50), "row_start_loc": starts, "token_ids": ids, "counts": ids % 3,
        "repetition": torch.rand(ROWS) + 0.5, "frequency": torch.rand(ROWS), "presence": torch.rand(ROWS),
        "bias_start_loc": starts, "bias_ids": ids, "biases": torch.randn(3), "ending_start_loc": starts,
        "ending_ids": ids, "bitmask": torch.full((ROWS, 2), -5, dtype=torch.int32),
    }  # fmt: skip


def norm_arguments(**changes):
    return {"x": torch.randn(ROWS, 64), "weight": torch.randn(64), "eps": 1e-6, **changes}


def good_arguments():
    return {
        "paged_attention": attention_arguments(),
        "varlen_attention": varlen_arguments(),
        "rope_and_cache_write": rope_arguments(),
        "rms_norm": norm_arguments(),
        "add_rms_norm": norm_arguments(residual=torch.randn(ROWS, 64)),
        "layer_norm": norm_arguments(bias=torch.randn(64)),
        "silu_and_mul": {"gate_up": torch.randn(ROWS, 64)},
        "gelu_and_mul": {"gate_up": torch.randn(ROWS, 64), "approximate": "tanh"},
        "apply_penalties": penalties_arguments(),
        "sample": sample_arguments(),
        "copy_blocks": {"key_cache": cache(), "value_cache": cache(), "block_pairs": PAIRS},
        "swap_blocks": {"source": cache(), "destination": cache()[:3], "block_pairs": PAIRS},
    }


@pytest.fixture
def reference_on_cpu(monkeypatch):
    """The reference in place of the CPU kernels."""
    for cpu, _ in ops.IMPLEMENTATIONS.values():
        monkeypatch.setitem(sys.modules, f"kernels.cpu.{cpu}", reference)


def parameters(function):
    return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("op", ops.IMPLEMENTATIONS)
def test_every_implementation_has_the_signature_of_the_op(op):
    cpu, triton = ops.IMPLEMENTATIONS[op]
    wanted = parameters(getattr(ops, op))
    assert parameters(getattr(reference, op)) == wanted
    for module in (f"kernels.cpu.{cpu}", f"kernels.triton.{triton}"):
        found = parameters(getattr(importlib.import_module(module), op))
        assert [p for p in found if p[0] != "config"] == wanted, module


@pytest.mark.parametrize("op", ops.IMPLEMENTATIONS)
def test_every_op_has_a_kernel_for_both_devices(op):
    for key in ("CPU", "CUDA", "Meta"):
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"conveyor::{op}", key), key


@pytest.mark.parametrize("op", ops.IMPLEMENTATIONS)
def test_a_call_reaches_the_implementation_whole(op, monkeypatch):
    arguments, seen = good_arguments()[op], {}

    def implementation(*args, **kwargs):
        bound = inspect.signature(getattr(reference, op)).bind(*args, **kwargs)
        bound.apply_defaults()
        seen.update(bound.arguments)
        return getattr(reference, op)(*args, **kwargs)

    module = type(sys)("stand_in")
    setattr(module, op, implementation)
    monkeypatch.setitem(sys.modules, f"kernels.cpu.{ops.IMPLEMENTATIONS[op][0]}", module)
    getattr(ops, op)(**arguments)
    for name, value in arguments.items():
        same = seen[name].data_ptr() == value.data_ptr() if isinstance(value, torch.Tensor) else seen[name] == value
        assert same, name


@pytest.mark.parametrize("op", ops.IMPLEMENTATIONS)
def test_schema_and_fake_tensors_tell_the_truth(op, reference_on_cpu):
    """opcheck: only declared arguments are mutated, nothing is aliased, the fake output has the real one's form."""
    arguments = good_arguments()[op]
    schema = getattr(torch.ops.conveyor, op).default._schema
    positional = [arguments[a.name] for a in schema.arguments if not a.kwarg_only and a.name in arguments]
    keyword = {a.name: arguments[a.name] for a in schema.arguments if a.kwarg_only and a.name in arguments}
    torch.library.opcheck(
        getattr(torch.ops.conveyor, op).default, positional, keyword, test_utils=("test_schema", "test_faketensor")
    )


def test_a_compiled_graph_holds_one_node_an_op(reference_on_cpu):
    seen = []

    def block(x, residual, weight):
        return ops.silu_and_mul(ops.add_rms_norm(x, residual, weight, 1e-6))

    def backend(graph, _):
        seen.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    torch.compile(block, backend=backend, fullgraph=True)(torch.randn(3, 64), torch.randn(3, 64), torch.randn(64))
    assert [target.split(".")[1] for target in seen if "conveyor" in target] == ["add_rms_norm", "silu_and_mul"]


def strided_last(*shape):
    return torch.randn(*shape, 2)[..., 0]


BAD = [
    ("paged_attention", {"query": torch.randn(3, 128)}, r"query must have shape \[\*, \*, \*\], got \[3, 128\]"),
    ("paged_attention", {"query": torch.randn(3, 4, 32, dtype=torch.float64)}, "query must be .*got torch.float64"),
    ("paged_attention", {"query": strided_last(3, 4, 32)}, "query must have stride 1 in its last dimension"),
    ("paged_attention", {"query": torch.randn(3, 5, 32)}, "query has 5 heads, no multiple of key_cache's 2"),
    ("paged_attention", {"query": torch.randn(3, 4, 64)}, r"key_cache must have shape \[\*, \*, \*, 64\]"),
    ("paged_attention", {"key_cache": torch.randn(3, 16, 2, 32).half()}, "key_cache must be torch.float32 or .*float8"),
    ("paged_attention", {"value_cache": torch.randn(3, 16, 1, 32)}, "value_cache must have shape"),
    ("paged_attention", {"key_cache": strided_last(3, 16, 2, 32)}, "key_cache must be contiguous, got strides"),
    ("paged_attention", {"block_table": torch.zeros(2, 3, dtype=torch.int64)}, "block_table must be torch.int32"),
    ("paged_attention", {"block_table": torch.zeros(5, 3, dtype=torch.int32)}, r"block_table .* \[2, \*\]"),
    ("paged_attention", {"query_start_loc": torch.zeros(2, dtype=torch.int32)}, r"query_start_loc .* \[3\]"),
    ("paged_attention", {"alibi_slopes": torch.ones(2)}, r"alibi_slopes must have shape \[4\]"),
    ("paged_attention", {"sinks": torch.ones(4).half()}, "sinks must be torch.float32"),
    ("paged_attention", {"sinks": torch.ones(4, device="meta")}, "sinks must be on cpu, got meta"),
    ("paged_attention", {"window": -1}, "window=-1"),
    ("paged_attention", {"scale": 0.0}, "scale must be positive"),
    ("paged_attention", {"v_scale": 0.0}, "v_scale must be positive, got 0.0"),
    ("varlen_attention", {"key": torch.randn(4, 2, 32)}, r"key must have shape \[5, \*, 32\], got \[4, 2, 32\]"),
    ("varlen_attention", {"value": torch.randn(5, 1, 32)}, r"value must have shape \[5, 2, 32\]"),
    ("varlen_attention", {"value": torch.randn(5, 2, 32).half()}, "value must be torch.float32, got torch.float16"),
    ("varlen_attention", {"query": torch.randn(5, 3, 32)}, "query has 3 heads, no multiple of key's 2"),
    ("varlen_attention", {"key": strided_last(5, 2, 32)}, "key must have stride 1 in its last dimension"),
    ("varlen_attention", {"query_start_loc": torch.tensor([0, 5])}, "query_start_loc must be torch.int32"),
    ("varlen_attention", {"sinks": torch.ones(2)}, r"sinks must have shape \[4\]"),
    ("varlen_attention", {"softcap": -1.0}, "none may be negative: window=2, softcap=-1.0, max_query_len=3"),
    ("varlen_attention", {"scale": -1.0}, "scale must be positive"),
    ("rope_and_cache_write", {"key": torch.randn(3, 1, 32)}, r"key must have shape \[3, 2, 32\]"),
    ("rope_and_cache_write", {"cos_sin": torch.rand(9, 64)}, "cos_sin must be even and at most head_dim 32 wide"),
    ("rope_and_cache_write", {"cos_sin": torch.rand(9, 32).half()}, "cos_sin must be torch.float32"),
    ("rope_and_cache_write", {"slot_mapping": torch.zeros(3, dtype=torch.int32)}, "slot_mapping must be torch.int64"),
    ("rope_and_cache_write", {"rope_rows": torch.zeros(2, dtype=torch.int64)}, r"rope_rows must have shape \[3\]"),
    ("rope_and_cache_write", {"k_norm_weight": torch.ones(8)}, r"k_norm_weight must have shape \[32\]"),
    ("rms_norm", {"weight": torch.ones(32)}, r"weight must have shape \[64\], got \[32\]"),
    ("rms_norm", {"x": torch.randn(ROWS, 128)[:, :64]}, "x must be contiguous"),
    ("add_rms_norm", {"residual": torch.randn(ROWS, 64).half()}, "residual must be torch.float32"),
    ("layer_norm", {"bias": torch.randn(63)}, "bias must have shape"),
    ("silu_and_mul", {"gate_up": torch.randn(3, 63)}, "gate_up must have an even width, got 63"),
    ("gelu_and_mul", {"approximate": "fast"}, 'approximate must be "tanh" or "none"'),
    ("apply_penalties", {"logits": torch.randn(3, 50).half()}, "logits must be torch.float32"),
    ("apply_penalties", {"logits": torch.randn(3, 60)[:, :50]}, "logits must be contiguous"),
    ("apply_penalties", {"row_start_loc": torch.zeros(3, dtype=torch.int32)}, r"row_start_loc .* \[4\], got \[3\]"),
    ("apply_penalties", {"token_ids": torch.zeros(3, dtype=torch.int64)}, "token_ids must be torch.int32"),
    ("apply_penalties", {"counts": torch.zeros(2, dtype=torch.int32)}, r"counts must have shape \[3\], got \[2\]"),
    ("apply_penalties", {"biases": torch.zeros(2)}, r"biases must have shape \[3\], got \[2\]"),
    ("apply_penalties", {"presence": torch.zeros(4)}, r"presence must have shape \[3\], got \[4\]"),
    ("apply_penalties", {"bitmask": torch.zeros(3, 1, dtype=torch.int32)}, r"bitmask must have shape \[3, 2\]"),
    ("sample", {"logits": torch.randn(3, 50).half()}, "logits must be torch.float32"),
    ("sample", {"top_k": torch.zeros(3)}, "top_k must be torch.int32"),
    ("sample", {"seeds": torch.zeros(2, dtype=torch.int64)}, r"seeds must have shape \[3\]"),
    ("copy_blocks", {"value_cache": torch.randn(4, 5, 1, 32)}, r"value_cache must have shape \[4, 5, 2, 32\]"),
    ("copy_blocks", {"key_cache": strided_last(4, 5, 2, 32)}, "key_cache must be contiguous"),
    ("copy_blocks", {"block_pairs": PAIRS.int()}, "block_pairs must be torch.int64, got torch.int32"),
    ("copy_blocks", {"block_pairs": PAIRS[0]}, r"block_pairs must have shape \[\*, 2\]"),
    ("swap_blocks", {"destination": torch.randn(9, 5, 2, 16)}, r"destination must have shape \[\*, 5, 2, 32\]"),
    ("swap_blocks", {"destination": torch.randn(9, 5, 2, 32).half()}, "destination must be torch.float32"),
    ("swap_blocks", {"block_pairs": PAIRS.to("meta")}, "block_pairs must be on cpu, got meta"),
    ("swap_blocks", {"destination": torch.empty(9, 5, 2, 32, device="meta")}, "source must be pinned memory"),
    ("swap_blocks", {"source": torch.empty(9, 5, 2, 32, device="meta")}, "destination must be pinned memory"),
]


@pytest.mark.parametrize(("op", "changes", "message"), BAD, ids=[f"{op}-{next(iter(c))}-{m[:24]}" for op, c, m in BAD])
def test_a_bad_argument_is_named(op, changes, message):
    with pytest.raises(ValueError, match=message):
        getattr(ops, op)(**{**good_arguments()[op], **changes})

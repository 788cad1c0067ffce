"""What a kernel test needs: NaN-poisoned inputs, tolerances that follow from the arithmetic, random cases.

The harness: the caches hold NaN but in the slots a sequence owns, block-table padding points at a NaN block, the
query is a strided view with NaN around it, and every allocation comes back full of NaN. A kernel that reads a stale
tail, an alias or a neighbour, or leaves part of its output unwritten, cannot return finite, exact numbers.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kernels import reference


@contextmanager
def nan_allocations() -> Iterator[None]:
    """Inside, torch.empty and its kin return NaN (the largest integer for integer types)."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # fills uninitialised memory by default
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def assert_close(actual: Tensor, expected: Tensor, reduction: int, what: str = "") -> None:
    """Error of `actual` against a float64 `expected`, both in the largest element and on average.

    The unit of error is one rounding of the output's dtype plus the growth of float32 sums over `reduction` terms,
    sqrt(reduction) roundings for random signs. The largest error may be 8 units of the largest magnitude, the RMS
    error 2 units of the RMS magnitude: the first bound catches one wrong element, the second a small bias everywhere.
    """
    assert actual.shape == expected.shape, f"{what} has shape {list(actual.shape)}, not {list(expected.shape)}"
    assert bool(torch.isfinite(actual.float()).all()), f"{what} holds NaN or infinity"
    if actual.numel() == 0:
        return
    unit = torch.finfo(actual.dtype).eps / 2 + math.sqrt(reduction) * 2.0**-24
    error, truth = actual.double() - expected.double(), expected.double()
    largest, largest_bound = error.abs().max().item(), 8 * unit * truth.abs().max().item()
    rms, rms_bound = error.square().mean().sqrt().item(), 2 * unit * truth.square().mean().sqrt().item()
    assert largest <= largest_bound, f"{what} largest error {largest:.2e} is above {largest_bound:.2e}"
    assert rms <= rms_bound, f"{what} RMS error {rms:.2e} is above {rms_bound:.2e}"


@dataclass(frozen=True)
class AttentionCase:
    """Inputs of paged_attention, poisoned with NaN wherever a correct kernel has no business."""

    query: Tensor  # [num_tokens, num_query_heads, head_dim]
    key_cache: Tensor  # [num_blocks, page, num_kv_heads, head_dim]
    value_cache: Tensor
    block_table: Tensor  # int32 [num_requests, max_blocks]
    seq_lens: Tensor  # int32 [num_requests]
    query_start_loc: Tensor  # int32 [num_requests + 1]
    options: dict[str, Any]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (
            self.query, self.key_cache, self.value_cache, self.block_table, self.seq_lens, self.query_start_loc
        )  # fmt: skip

    def run(self, attention: Callable[..., Tensor], **extra: Any) -> Tensor:
        with nan_allocations():
            return attention(*self.tensors, **self.options, **extra)

    def rows(self, request: int) -> slice:
        """The tokens of one request."""
        starts = self.query_start_loc.tolist()
        return slice(starts[request], starts[request + 1])

    def select(self, requests: Sequence[int]) -> "AttentionCase":
        """The same requests in another batch: these only, in this order, over the same cache."""
        lengths = [self.rows(r).stop - self.rows(r).start for r in requests]
        options = {**self.options, "max_query_len": max(lengths)}
        query = torch.cat([self.query[self.rows(r)] for r in requests])
        index = torch.tensor(requests)
        return AttentionCase(
            query, self.key_cache, self.value_cache, self.block_table[index], self.seq_lens[index],
            start_locations(lengths), options,
        )  # fmt: skip


def start_locations(lengths: Sequence[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


def attention_case(
    query_lens: Sequence[int],
    seq_lens: Sequence[int],
    *,
    num_query_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 32,
    page: int = 16,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
    seed: int = 0,
    **options: Any,
) -> AttentionCase:
    """A random case; `options` go to the kernel as they are (scale and max_query_len have defaults)."""
    rng = torch.Generator().manual_seed(seed)
    blocks = [math.ceil(length / page) for length in seq_lens]
    order = torch.randperm(sum(blocks), generator=rng) + 1  # block 0 stays NaN: padding points there
    cache_shape = (sum(blocks) + 1, page, num_kv_heads, head_dim)
    caches = torch.full((2, *cache_shape), math.nan)
    block_table = torch.zeros(len(seq_lens), max(blocks) + 1, dtype=torch.int32)
    for r, owned in enumerate(order.split(blocks)):
        block_table[r, : len(owned)] = owned
        positions = torch.arange(seq_lens[r])
        cells = torch.randn(2, seq_lens[r], num_kv_heads, head_dim, generator=rng)
        caches[:, owned[positions // page], positions % page] = cells
    num_tokens = sum(query_lens)
    packed = torch.full((num_tokens, num_query_heads + 2 * num_kv_heads, head_dim), math.nan, dtype=dtype)
    query = packed[:, :num_query_heads]  # a view of packed QKV, as the model passes it
    query.copy_(torch.randn(query.shape, generator=rng))
    key_cache, value_cache = caches.to(cache_dtype or dtype)
    defaults = {"scale": head_dim**-0.5, "max_query_len": max(query_lens, default=0)}
    return AttentionCase(
        query, key_cache, value_cache, block_table, torch.tensor(seq_lens, dtype=torch.int32),
        start_locations(query_lens), {**defaults, **options},
    )  # fmt: skip


def check_attention(case: AttentionCase, attention: Callable[..., Tensor], **extra: Any) -> Tensor:
    """Runs the kernel, compares it with the reference, and makes sure that it wrote nothing but its output."""
    before = [tensor.clone() for tensor in case.tensors]
    actual = case.run(attention, **extra)
    expected = reference.paged_attention(*case.tensors, **case.options)
    for tensor, copy in zip(case.tensors, before, strict=True):
        assert torch.equal(tensor.view(torch.uint8), copy.view(torch.uint8)), "an input was written"
    assert_close(actual, expected, int(case.seq_lens.max()), "attention")
    return actual


@dataclass(frozen=True)
class VarlenCase:
    """Inputs of varlen_attention: views of packed QKV with NaN between the heads and after the last request."""

    query: Tensor  # [num_tokens, num_query_heads, head_dim]
    key: Tensor  # [num_tokens, num_kv_heads, head_dim]
    value: Tensor
    query_start_loc: Tensor  # int32 [num_requests + 1]
    options: dict[str, Any]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.query, self.key, self.value, self.query_start_loc

    def run(self, attention: Callable[..., Tensor], **extra: Any) -> Tensor:
        """The rows of all requests."""
        with nan_allocations():
            return attention(*self.tensors, **self.options, **extra)[: int(self.query_start_loc[-1])]

    def rows(self, request: int) -> slice:
        """The tokens of one request."""
        starts = self.query_start_loc.tolist()
        return slice(starts[request], starts[request + 1])

    def select(self, requests: Sequence[int]) -> "VarlenCase":
        """The same requests in another batch: these only, in this order."""
        lengths = [self.rows(r).stop - self.rows(r).start for r in requests]
        query, key, value = (torch.cat([x[self.rows(r)] for r in requests]) for x in (self.query, self.key, self.value))
        options = {**self.options, "max_query_len": max(lengths)}
        return VarlenCase(query, key, value, start_locations(lengths), options)


def varlen_case(
    lengths: Sequence[int],
    *,
    num_query_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 32,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    **options: Any,
) -> VarlenCase:
    """A random case; `options` go to the kernel as they are (scale and max_query_len have defaults)."""
    rng = torch.Generator().manual_seed(seed)
    num_tokens, num_heads = sum(lengths), num_query_heads + 2 * num_kv_heads
    packed = torch.full((num_tokens + 3, num_heads + 1, head_dim), math.nan, dtype=dtype)
    packed[:num_tokens, :num_heads] = torch.randn(num_tokens, num_heads, head_dim, generator=rng)
    query, key, value = packed[:, :num_heads].split([num_query_heads, num_kv_heads, num_kv_heads], dim=1)
    defaults = {"scale": head_dim**-0.5, "max_query_len": max(lengths, default=0)}
    return VarlenCase(query, key, value, start_locations(lengths), {**defaults, **options})


def check_varlen(case: VarlenCase, attention: Callable[..., Tensor], **extra: Any) -> Tensor:
    """Runs the kernel and compares it with the reference."""
    before = [tensor.clone() for tensor in case.tensors]
    actual = case.run(attention, **extra)
    for tensor, copy in zip(case.tensors, before, strict=True):
        assert torch.equal(tensor.view(torch.uint8), copy.view(torch.uint8)), "an input was written"
    assert_close(actual, case.run(reference.varlen_attention), case.options["max_query_len"], "attention")
    return actual


def random_attention_case(seed: int, **fixed: Any) -> AttentionCase:
    """A case drawn from everything that attention supports; `fixed` overrides a draw."""
    rng = torch.Generator().manual_seed(seed)

    def pick(*choices: Any) -> Any:
        return choices[int(torch.randint(len(choices), (1,), generator=rng))]

    num_kv_heads = pick(1, 2)
    num_query_heads = num_kv_heads * pick(1, 2, 4, 5, 7)
    num_requests = pick(1, 2, 3)
    query_lens = [pick(0, 1, 1, 2, 5, 17, 33) for _ in range(num_requests)]
    if sum(query_lens) == 0:
        query_lens[0] = 1
    seq_lens = [length + pick(0, 1, 15, 16, 31, 40) for length in query_lens]
    slopes = torch.rand(num_query_heads, generator=rng) / 4
    sinks = torch.randn(num_query_heads, generator=rng)
    drawn = {
        "num_query_heads": num_query_heads, "num_kv_heads": num_kv_heads, "head_dim": pick(32, 64, 80, 96),
        "page": pick(1, 5, 16, 32, 64), "dtype": pick(torch.float32, torch.float16), "causal": pick(True, True, False),
        "window": pick(0, 0, 1, 7, 16), "softcap": pick(0.0, 0.0, 5.0), "alibi_slopes": pick(None, slopes),
        "sinks": pick(None, None, sinks), "k_scale": pick(1.0, 0.5), "v_scale": pick(1.0, 2.0),
    }  # fmt: skip
    return attention_case(query_lens, seq_lens, seed=seed, **{**drawn, **fixed})


@contextmanager
def products_alike() -> Iterator[None]:
    """Inside, an interpreted kernel's products of float32 are summed in float64 and rounded once.

    The interpreter takes them from NumPy's BLAS, which on some processors sums a tile's last rows in another order: the
    same numbers would have other bits in another row of a tile.
    """
    from triton.runtime import interpreter

    numpy = interpreter.np

    class Rounding:
        """NumPy with another matmul."""

        def __getattr__(self, name: str) -> Any:
            return getattr(numpy, name)

        def matmul(self, a: Any, b: Any, dtype: Any) -> Any:
            return numpy.matmul(a, b, dtype=numpy.float64 if dtype == numpy.float32 else dtype).astype(dtype)

    interpreter.np = Rounding()
    try:
        yield
    finally:
        interpreter.np = numpy


@contextmanager
def bounds_checked() -> Iterator[None]:
    """Inside, an interpreted kernel that touches an address outside the tensors of its own launch fails.

    A tensor reaches from its first to its last element, so what lies beyond a view (the rest of a block table, the
    next allocation) is out of bounds although it is mapped memory.
    """
    from triton.runtime import interpreter

    spans: list[tuple[int, int]] = []
    executor, builder = interpreter.GridExecutor, interpreter.InterpreterBuilder
    init, load, store = executor._init_args_hst, builder.create_masked_load, builder.create_masked_store

    def recording_init(self: Any, args: Any, kwargs: Any) -> Any:
        spans[:] = [_span(a) for a in (*args, *kwargs.values()) if isinstance(a, Tensor) and a.numel()]
        return init(self, args, kwargs)

    def check(pointers: Any, mask: Any) -> None:
        touched = pointers.data[mask.data.astype(bool)]
        inside = sum(((touched >= low) & (touched < high) for low, high in spans), start=touched != touched)
        assert bool(inside.all()), f"{int((~inside).sum())} of {touched.size} addresses lie outside every argument"

    def checked_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        check(pointers, mask)
        return load(self, pointers, mask, *rest)

    def checked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        check(pointers, mask)
        return store(self, pointers, value, mask, *rest)

    executor._init_args_hst = recording_init
    builder.create_masked_load, builder.create_masked_store = checked_load, checked_store
    try:
        yield
    finally:
        executor._init_args_hst = init
        builder.create_masked_load, builder.create_masked_store = load, store


def _span(tensor: Tensor) -> tuple[int, int]:
    """The half-open range of addresses from a tensor's first to its last element."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()

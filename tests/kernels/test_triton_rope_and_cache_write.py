"""Triton's rope_and_cache_write, interpreted: parity with the reference on packed QKV views and a NaN cache."""

import math

import pytest
import torch

from kernels import reference
from kernels.testing import assert_close
from kernels.triton.rope_and_cache_write import rope_and_cache_write

T, HQ, HKV, PAGE = 5, 3, 2, 5
SLOTS = torch.tensor([3, -1, 19, 0, 7])


def run(implementation, head_dim, rotary_dim, *, dtype=torch.float32, cache_dtype=None, norm=False, **options):
    """(qkv, key_cache, value_cache) after the call; everything a correct kernel leaves alone is as it was.

    For an FP8 cache qkv holds what FP8 holds exactly: the interpreter rounds the rest wrongly.
    """
    rng = torch.Generator().manual_seed(0)
    width = HQ + 2 * HKV
    shape = (T, width + 1, head_dim)  # one head more than is used: rows do not touch one another
    exact = torch.randint(-15, 16, shape, generator=rng).float()
    qkv = (exact if cache_dtype else torch.randn(shape, generator=rng)).to(dtype)[:, :width]
    cos_sin = torch.rand(9, rotary_dim, generator=rng) if rotary_dim else None
    caches = torch.full((2, 4, PAGE, HKV, head_dim), math.nan).to(cache_dtype or dtype)
    if norm:
        options["q_norm_weight"], options["k_norm_weight"] = torch.randn(2, head_dim, generator=rng)
    implementation(
        qkv[:, :HQ], qkv[:, HQ : HQ + HKV], qkv[:, HQ + HKV :], cos_sin, torch.tensor([1, 2, 3, 8, 0]),
        caches[0], caches[1], SLOTS, **options,
    )  # fmt: skip
    return qkv, caches[0], caches[1]


def check(head_dim, rotary_dim, **options):
    actual = run(rope_and_cache_write, head_dim, rotary_dim, **options)
    expected = run(reference.rope_and_cache_write, head_dim, rotary_dim, **options)
    assert_close(actual[0], expected[0], head_dim, "qkv")
    for name, got, wanted in zip(("key_cache", "value_cache"), actual[1:], expected[1:], strict=True):
        written = ~wanted.float().isnan()
        assert torch.equal(~got.float().isnan(), written), f"{name} was written elsewhere than in its slots"
        assert int(written.sum()) == 4 * HKV * head_dim
        if wanted.dtype.itemsize == 1:
            assert torch.equal(got.view(torch.uint8), wanted.view(torch.uint8)), name
        else:
            assert_close(got[written], wanted[written], head_dim, name)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (80, 80), (80, 20), (96, 32), (72, 36)])
def test_full_and_partial_rotary(head_dim, rotary_dim, interleaved):
    check(head_dim, rotary_dim, interleaved=interleaved)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("one_plus", [False, True])
@pytest.mark.parametrize("rotary_dim", [0, 24, 80])
def test_norm_covers_the_whole_head_before_rotation(rotary_dim, one_plus, interleaved):
    check(80, rotary_dim, norm=True, norm_one_plus=one_plus, eps=1e-3, interleaved=interleaved)


def test_without_rotation_the_cache_is_written_all_the_same():
    check(64, 0)


def test_half_precision_rounds_once():
    check(64, 64, dtype=torch.float16, norm=True)


def test_padding_slot_writes_nothing_although_its_row_is_rotated():
    qkv, key_cache, _ = run(rope_and_cache_write, 32, 32)
    before, _, _ = run(lambda *args, **options: None, 32, 32)
    assert not torch.equal(qkv[1, :HQ], before[1, :HQ])
    assert key_cache[3, PAGE - 2].isnan().all() and key_cache[3, PAGE - 1].isfinite().all()  # slot 19, not -1's 18


def test_values_in_the_packed_row_stay():
    qkv, _, _ = run(rope_and_cache_write, 32, 32)
    before, _, _ = run(lambda *args, **options: None, 32, 32)
    assert torch.equal(qkv[:, HQ + HKV :], before[:, HQ + HKV :])


def test_fp8_cache_divides_by_each_scale():
    check(64, 0, cache_dtype=torch.float8_e4m3fn, k_scale=0.5, v_scale=2.0)


def test_fp8_cache_saturates():
    _, *caches = run(rope_and_cache_write, 64, 0, cache_dtype=torch.float8_e4m3fn, k_scale=1e-7, v_scale=1e-7)
    for cache in caches:
        written = cache.float()[~cache.float().isnan()]
        assert written.unique().tolist() == [-448.0, 0.0, 448.0] and written.numel() == 4 * HKV * 64


def test_a_slot_beyond_32_bits(monkeypatch):
    """The row's first element lies 2**31 elements into the cache; the pages before are never touched."""
    from triton.runtime.interpreter import GridExecutor

    monkeypatch.setattr(GridExecutor, "_restore_args_dev", lambda *args: None)  # it would copy the cache onto itself
    qkv = torch.randn(1, 3, 32).half()
    far = 2**31 // (16 * 32)
    cache = torch.empty(far + 1, 16, 1, 32, dtype=torch.float16)
    rope_and_cache_write(
        qkv[:, :1], qkv[:, 1:2], qkv[:, 2:], None, torch.tensor([0]), cache, cache, torch.tensor([far * 16 + 2])
    )
    assert torch.equal(cache[far, 2, 0], qkv[0, 2])

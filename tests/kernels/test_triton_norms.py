"""Triton's RMS norm, with and without the residual, and layer norm, interpreted: parity with the reference."""

import pytest
import torch

from kernels import reference
from kernels.testing import assert_close, nan_allocations
from kernels.triton.layer_norm import layer_norm
from kernels.triton.rms_norm import add_rms_norm, rms_norm

WIDTHS = [1, 64, 100, 896]


def rows(width, dtype, count=3):
    rng = torch.Generator().manual_seed(width)
    return [torch.randn(5, width, generator=rng).to(dtype) for _ in range(count)]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("one_plus", [False, True])
def test_rms_norm(width, dtype, one_plus):
    x, weight = rows(width, dtype)[:2]
    with nan_allocations():
        out = rms_norm(x, weight[0], 1e-5, one_plus)
    assert_close(out, reference.rms_norm(x, weight[0], 1e-5, one_plus), width)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_add_rms_norm_norms_the_sum_as_it_was_stored(dtype):
    x, residual, weight = rows(100, dtype)
    expected_residual, before = residual.clone(), x.clone()
    expected = reference.add_rms_norm(x, expected_residual, weight[0], 1e-5)
    with nan_allocations():
        out = add_rms_norm(x, residual, weight[0], 1e-5)
    assert torch.equal(residual, expected_residual) and torch.equal(x, before)
    assert_close(out, expected, 100)


@pytest.mark.parametrize("width", WIDTHS[1:])
@pytest.mark.parametrize("with_bias", [False, True])
def test_layer_norm(width, with_bias):
    x, weight, bias = rows(width, torch.float32)
    bias = bias[0] if with_bias else None
    with nan_allocations():
        out = layer_norm(x + 3, weight[0], bias, 1e-5)
    assert_close(out, reference.layer_norm(x + 3, weight[0], bias, 1e-5), width)


def test_layer_norm_of_a_constant_row_is_its_bias():
    bias = torch.randn(100)
    assert torch.equal(layer_norm(torch.full((2, 100), 7.0), torch.ones(100), bias, 1e-5), bias.expand(2, -1))


def test_no_rows():
    empty = torch.empty(0, 64)
    assert rms_norm(empty, torch.ones(64), 1e-5).shape == (0, 64)
    assert layer_norm(empty, torch.ones(64), None, 1e-5).shape == (0, 64)


def test_a_row_does_not_depend_on_the_others():
    x, _, weight = rows(100, torch.float32)
    assert torch.equal(rms_norm(x, weight[0], 1e-5)[2:3], rms_norm(x[2:3].clone(), weight[0], 1e-5))

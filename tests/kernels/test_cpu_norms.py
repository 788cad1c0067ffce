"""CPU norms: parity with the reference, and the same bits for a row whatever rows are beside it."""

import pytest
import torch

from kernels import reference
from kernels.cpu import norms
from kernels.testing import assert_close, nan_allocations

WIDTHS = pytest.mark.parametrize("width", [1, 7, 16, 64, 100, 896])


def rand(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3


@WIDTHS
@pytest.mark.parametrize("one_plus", [False, True])
def test_rms_norm(width, one_plus):
    x, weight = rand(5, width), rand(width, seed=1)
    with nan_allocations():
        out = norms.rms_norm(x, weight, 1e-6, one_plus)
    assert_close(out, reference.rms_norm(x, weight, 1e-6, one_plus), width)


@WIDTHS
def test_add_rms_norm_returns_the_norm_and_updates_the_residual(width):
    x, residual, weight = rand(5, width), rand(5, width, seed=1), rand(width, seed=2)
    expected_residual, before = residual.clone(), x.clone()
    expected = reference.add_rms_norm(x, expected_residual, weight, 1e-6)
    with nan_allocations():
        out = norms.add_rms_norm(x, residual, weight, 1e-6)
    assert_close(out, expected, width)
    assert torch.equal(residual, expected_residual) and torch.equal(x, before)


@WIDTHS
@pytest.mark.parametrize("with_bias", [False, True])
def test_layer_norm(width, with_bias):
    x, weight, bias = rand(5, width) + 10, rand(width, seed=1), rand(width, seed=2) if with_bias else None
    with nan_allocations():
        out = norms.layer_norm(x, weight, bias, 1e-5)
    assert_close(out, reference.layer_norm(x, weight, bias, 1e-5), width)


def test_weights_of_another_dtype_are_widened():
    x, weight = rand(5, 64), rand(64, seed=1).half()
    assert torch.equal(norms.rms_norm(x, weight, 1e-6), norms.rms_norm(x, weight.float(), 1e-6))


def test_a_row_of_zeros_stays_zero():
    assert torch.equal(norms.rms_norm(torch.zeros(2, 64), torch.ones(64), 1e-6), torch.zeros(2, 64))


def test_nan_stays_in_its_row():
    x = rand(3, 64)
    clean = norms.rms_norm(x, torch.ones(64), 1e-6)
    x[1, 5] = torch.nan
    dirty = norms.rms_norm(x, torch.ones(64), 1e-6)
    assert bool(dirty[1].isnan().all()) and torch.equal(dirty[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize("width", [100, 896])
def test_bits_do_not_depend_on_the_rows_beside(width):
    x, residual, weight = rand(200, width), rand(200, width, seed=1), rand(width, seed=2)
    for op in (
        lambda rows: norms.rms_norm(x[rows], weight, 1e-6),
        lambda rows: norms.add_rms_norm(x[rows], residual[rows].clone(), weight, 1e-6),
        lambda rows: norms.layer_norm(x[rows], weight, weight, 1e-6),
    ):
        together = op(slice(0, 200))
        for rows in (slice(0, 1), slice(1, 2), slice(3, 50), slice(199, 200)):
            assert torch.equal(op(rows), together[rows])

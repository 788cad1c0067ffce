"""Triton's gated activations, interpreted: parity with the reference."""

import pytest
import torch

from kernels import reference
from kernels.testing import assert_close, nan_allocations
from kernels.triton import configs
from kernels.triton.activation import gelu_and_mul, silu_and_mul

CASES = [(silu_and_mul, ()), (gelu_and_mul, ("tanh",)), (gelu_and_mul, ("none",))]


def check(function, extra, gate_up):
    with nan_allocations():
        out = function(gate_up, *extra)
    assert_close(out, getattr(reference, function.__name__)(gate_up, *extra), 1)


@pytest.mark.parametrize(("function", "extra"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_parity(function, extra, dtype):
    rng = torch.Generator().manual_seed(0)
    check(function, extra, (torch.randn(3, 2 * 100, generator=rng) * 2).to(dtype))


def test_a_width_over_several_blocks():
    width = configs.ACTIVATION_BLOCK + 76
    check(silu_and_mul, (), torch.randn(2, 2 * width, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize(("function", "extra"), CASES)
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_large_gates_saturate_to_the_identity_and_to_zero(function, extra):
    gates = torch.tensor([[200.0, -200.0]])
    out = function(torch.cat([gates, torch.ones(1, 2)], dim=1), *extra)
    assert out.tolist() == [[200.0, 0.0]]


def test_no_rows_and_no_width():
    assert silu_and_mul(torch.empty(0, 8)).shape == (0, 4)
    assert silu_and_mul(torch.empty(3, 0)).shape == (3, 0)

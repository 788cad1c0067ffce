"""CPU activations: parity with the reference, and the same bits for a row whatever rows are beside it."""

from functools import partial

import pytest
import torch

from kernels import reference
from kernels.cpu import activation
from kernels.testing import assert_close, nan_allocations

OPS = pytest.mark.parametrize(
    ("op", "expected"),
    [
        (activation.silu_and_mul, reference.silu_and_mul),
        (partial(activation.gelu_and_mul, approximate="tanh"), partial(reference.gelu_and_mul, approximate="tanh")),
        (partial(activation.gelu_and_mul, approximate="none"), partial(reference.gelu_and_mul, approximate="none")),
    ],
    ids=["silu", "gelu tanh", "gelu"],
)


def rand(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3


@OPS
@pytest.mark.parametrize("width", [1, 15, 16, 100, 4864])
def test_parity(op, expected, width):
    gate_up = rand(3, 2 * width)
    with nan_allocations():
        out = op(gate_up)
    assert_close(out, expected(gate_up), 4)


@OPS
def test_every_gate_from_minus_90_to_90(op, expected):
    gates = torch.linspace(-90, 90, 4096)
    gate_up = torch.cat([gates, torch.ones(4096)])[None]
    error = (op(gate_up).double() - expected(gate_up.double())).abs()
    assert bool((error[0] <= 3e-7 * gates.abs() + 1e-7).all())


@OPS
def test_nan_passes_through(op, expected):
    gate_up = torch.zeros(2, 40)
    gate_up[0, 3] = gate_up[0, 17] = torch.nan
    assert op(gate_up).isnan().nonzero().tolist() == [[0, 3], [0, 17]]


@OPS
def test_bits_do_not_depend_on_the_rows_beside(op, expected):
    gate_up = rand(300, 2 * 500)
    together = op(gate_up)
    for rows in (slice(0, 1), slice(1, 2), slice(3, 50), slice(299, 300)):
        assert torch.equal(op(gate_up[rows]), together[rows])

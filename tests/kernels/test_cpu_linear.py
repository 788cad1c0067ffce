"""CPU linear layers: accuracy of each form, the same bits for a row at every row count, exact sums where int8 traps."""

import os
import subprocess
import sys

import pytest
import torch

from kernels.cpu import linear
from kernels.cpu.linear import pack, weight_bytes

DTYPES = pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
TOLERANCE = {"float32": 1e-6, "float16": 3e-4, "int8": 2e-2}  # relative, of the whole product
ROW_COUNTS = [*range(1, 71), 120, 121, 127, 240, 241, 299]


def rand(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@DTYPES
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("outputs", "inputs"), [(96, 320), (1000, 64), (7, 33), (1, 1)])
def test_accuracy(dtype, with_bias, outputs, inputs):
    weight, bias, x = rand(outputs, inputs), rand(outputs, seed=1) if with_bias else None, rand(5, inputs, seed=2)
    expected = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    error = pack(weight, bias, dtype)(x) - expected
    assert error.norm() <= TOLERANCE[dtype] * expected.norm()


@DTYPES
@pytest.mark.parametrize(("outputs", "inputs"), [(96, 320), (320, 896), (40, 600)])
def test_bits_do_not_depend_on_the_number_of_rows(dtype, outputs, inputs):
    layer, x = pack(rand(outputs, inputs), rand(outputs, seed=1), dtype), rand(299, inputs, seed=2)
    together = layer(x)
    for count in ROW_COUNTS:
        assert torch.equal(layer(x[:count]), together[:count]), f"{count} rows"
        assert torch.equal(layer(x[299 - count :]), together[299 - count :]), f"the last {count} rows"


@DTYPES
def test_bits_do_not_depend_on_the_values_beside(dtype):
    layer, x = pack(rand(96, 320), None, dtype), rand(6, 320, seed=2)
    wild = x.clone()
    wild[1:] *= 1e6
    wild[3, 7] = torch.nan
    assert torch.equal(layer(wild)[0], layer(x)[0])
    assert bool(layer(wild)[[0, 1, 2, 4, 5]].isfinite().all())


@DTYPES
def test_bits_do_not_depend_on_the_layout_of_the_rows(dtype):
    layer, wide = pack(rand(96, 320), None, dtype), rand(6, 700, seed=2)
    assert torch.equal(layer(wide[:, 100:420]), layer(wide[:, 100:420].contiguous()))


@DTYPES
@pytest.mark.parametrize("weight_dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weights_are_taken(dtype, weight_dtype):
    weight, x = rand(32, 64).to(weight_dtype), rand(3, 64, seed=1)
    assert torch.equal(pack(weight, None, dtype)(x), pack(weight.float(), None, dtype)(x))


@DTYPES
def test_zero_rows_of_weight_and_input_give_zero(dtype):
    weight = rand(8, 64)
    weight[3] = 0
    out = pack(weight, None, dtype)(torch.cat([torch.zeros(1, 64), rand(2, 64, seed=1)]))
    assert not out[0].any() and not out[:, 3].any() and bool(out[1:, :3].all())


def test_int8_sums_of_one_sign_do_not_saturate():
    """Without VNNI, FBGEMM adds pairs in 16 bits: full-range weights would give 4.05 for a sum of 512 ones."""
    assert torch.equal(pack(torch.ones(16, 512), None, "int8")(torch.ones(3, 512)), torch.full((3, 16), 512.0))
    assert torch.equal(pack(-torch.ones(16, 512), None, "int8")(torch.ones(3, 512)), torch.full((3, 16), -512.0))


@pytest.mark.parametrize("levels", [63, 127])
def test_int8_products_equal_exact_integers(levels):
    if levels > linear._int8_levels():
        pytest.skip("this host saturates at full range")
    rng = torch.Generator().manual_seed(0)
    weight = torch.randint(0, levels + 1, (24, 512), generator=rng)
    x = torch.randint(0, 128, (5, 512), generator=rng)
    weight[:, 0], x[:, 0] = levels, 127  # the largest of each row, so that every scale is a whole number's
    out = linear._multiply_int8(x.float(), linear._pack_int8(weight.float(), levels))
    assert torch.allclose(out.double(), (x @ weight.T).double(), rtol=1e-6)


def test_float16_refuses_weights_beyond_its_range():
    for value in (65520.0, -1e6, float("inf"), float("nan")):
        weight = torch.zeros(4, 8)
        weight[1, 2] = value
        with pytest.raises(ValueError, match="float16 weights reach ±65504"):
            pack(weight, None, "float16")


def test_float32_where_the_quantized_engine_is_missing(monkeypatch):
    monkeypatch.setattr(linear, "storage_dtype", lambda dtype: "float32")
    layer = pack(rand(8, 16), None, "int8")
    assert layer.dtype == "float32" and layer.nbytes == 4 * 8 * 16 == weight_bytes(8, 16, "int8")


def test_bytes_held():
    assert pack(rand(32, 512), rand(32), "float32").nbytes == 4 * 32 * 512 + 4 * 32
    assert pack(rand(32, 512), None, "float16").nbytes == weight_bytes(32, 512, "float16") == 2 * 32 * 512
    assert weight_bytes(896, 4864, "int8") < weight_bytes(896, 4864, "float16") < weight_bytes(896, 4864, "float32")


@pytest.mark.exhaustive
def test_all_of_this_file_on_the_avx2_kernels():
    """FBGEMM without AVX-512 and VNNI: other tile heights, and 16-bit sums that saturate."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not exhaustive", __file__]
    run = subprocess.run(command, env={**os.environ, "FBGEMM_ENABLE_INSTRUCTIONS": "AVX2"}, capture_output=True)
    assert run.returncode == 0, run.stdout.decode()

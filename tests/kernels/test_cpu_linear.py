"""CPU linear layers: accuracy of each form, the same bits for a row at every row count, exact sums where int8 traps."""

import os
import subprocess
import sys

import pytest
import torch

from kernels.cpu import linear
from kernels.cpu.activation import gated
from kernels.cpu.host import has
from kernels.cpu.linear import pack, weight_bytes
from kernels.cpu.quantise import GROUP, LEVELS, STEPS
from kernels.cpu.row_tiles import block_rows
from kernels.testing import nan_allocations

DTYPES = pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
TOLERANCE = {"float32": 1e-6, "float16": 3e-4, "bfloat16": 4e-3, "int8": 2e-2}  # relative, of the whole product
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
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("gate", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("width", [1, 16, 40, 48, 600])
def test_a_gate_changes_no_bit_of_product_and_activation(dtype, gate, with_bias, width):
    weight, bias, x = rand(2 * width, 96), rand(2 * width, seed=1) if with_bias else None, rand(13, 96, seed=2)
    layer = pack(weight, bias, dtype, gate)
    with nan_allocations():
        assert torch.equal(layer(x), gated(pack(weight, bias, dtype)(x), gate))
    assert layer.num_outputs == width and layer.nbytes == pack(weight, bias, dtype).nbytes


@DTYPES
@pytest.mark.parametrize(("outputs", "inputs"), [(96, 320), (320, 896), (40, 600)])
def test_bits_do_not_depend_on_the_number_of_rows(dtype, outputs, inputs):
    layer, x = pack(rand(outputs, inputs), rand(outputs, seed=1), dtype), rand(299, inputs, seed=2)
    together = layer(x)
    for count in ROW_COUNTS:
        assert torch.equal(layer(x[:count]), together[:count]), f"{count} rows"
        assert torch.equal(layer(x[299 - count :]), together[299 - count :]), f"the last {count} rows"


def test_int8_bits_do_not_depend_on_the_number_of_rows_where_blocks_of_them_are_small():
    depth, num_rows = 30000, 60
    layer, x = pack(rand(33, depth), None, "int8"), rand(num_rows, depth, seed=2)
    block = block_rows(-(-depth // GROUP) * STEPS)
    assert 2 * block < num_rows and block < block_rows(STEPS)
    together = layer(x)
    for count in (1, block - 1, block, block + 1, 2 * block + 1):
        assert torch.equal(layer(x[:count]), together[:count]), f"{count} rows"
        assert torch.equal(layer(x[num_rows - count :]), together[num_rows - count :]), f"the last {count} rows"


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


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_int8_sums_of_one_sign_do_not_saturate(sign):
    """Products added in pairs in 16 bits, as processors without VNNI do it, leave no room for weights of ±127."""
    out = pack(sign * torch.ones(16, 512), None, "int8")(torch.ones(3, 512))
    assert torch.allclose(out, torch.full((3, 16), sign * 512.0), rtol=1e-6)


@pytest.mark.parametrize("num_inputs", [128, 1024])
def test_int8_products_equal_exact_integers(num_inputs):
    """Whole numbers whose groups reach the last level on both sides: every scale is that of a whole number."""
    rng = torch.Generator().manual_seed(0)
    weight = torch.randint(-LEVELS, LEVELS + 1, (40, num_inputs), generator=rng)
    x = torch.randint(-127, 128, (5, num_inputs), generator=rng)
    weight[:, ::GROUP], x[:, ::GROUP] = LEVELS, -127
    out = pack(weight.float(), None, "int8")(x.float())
    assert torch.allclose(out.double(), (x @ weight.T).double(), rtol=1e-6, atol=1e-6 * 127 * LEVELS * num_inputs)


def test_int8_outliers_spoil_their_own_group_only():
    weight, x = rand(32, 512), rand(4, 512, seed=1)
    x[:, 130] = 1e4
    weight[:, 130] = 0
    expected = x.double() @ weight.double().T
    grouped = pack(weight, None, "int8")(x) - expected
    beside = torch.ones(512, dtype=torch.bool)
    beside[128:256] = False
    assert grouped.norm() > 0.1 * expected.norm()              # the group of the outlier is lost
    x[:, 128:256] = 0
    clean = x.double()[:, beside] @ weight.double()[:, beside].T
    assert (pack(weight, None, "int8")(x) - clean).norm() <= TOLERANCE["int8"] * clean.norm()


def test_int8_takes_rows_of_any_magnitude():
    weight, x = rand(32, 128), rand(3, 128, seed=1)
    whole = pack(weight, None, "int8")(x)
    for scale in (2.0**-60, 2.0**60):
        assert torch.allclose(pack(weight, None, "int8")(x * scale) / scale, whole, rtol=1e-5)
    assert not pack(weight, None, "int8")(x * 1e-42).any()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_beyond_float16_are_taken(dtype):
    assert pack(torch.full((2, 3), 2.0**100), None, dtype)(torch.ones(1, 3)).tolist() == [[3 * 2.0**100] * 2]


def test_bfloat16_rounds_to_the_nearest_and_to_even():
    """1 + 2⁻⁸ lies between two bfloat16 and goes to 1; 1 + 3 · 2⁻⁸ to 1 + 2⁻⁶; a little more than half goes up."""
    x = torch.tensor([[1 + 2**-8], [1 + 3 * 2**-8], [1 + 2**-8 + 2**-20], [-1 - 2**-8], [3.4e38]])
    assert torch.equal(pack(torch.ones(1, 1), None, "bfloat16")(x), x.bfloat16().float())
    assert torch.equal(pack(x, None, "bfloat16")(torch.ones(1, 1)), x.bfloat16().float().T)


def test_bfloat16_adds_the_upper_product_of_a_pair_first():
    """So that a processor with the instruction and one without give the same bits."""
    weight = rand(40, 70)
    x = rand(9, 70, seed=1)
    expected = torch.zeros(9, 40)
    for pair in range(35):
        for place in (2 * pair + 1, 2 * pair):                 # a product of two bfloat16 is a float32: one rounding
            expected += x[:, place, None].bfloat16().float() * weight[:, place].bfloat16().float()
    assert torch.equal(pack(weight, None, "bfloat16")(x), expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_rows_with_no_number_give_no_number(dtype, value):
    x = rand(3, 256, seed=1)
    x[1, 7] = value
    out = pack(rand(40, 256), None, dtype)(x)
    assert not out[1].isfinite().any() and bool(out[[0, 2]].isfinite().all())


def test_float16_refuses_weights_beyond_its_range():
    for value in (65520.0, -1e6, float("inf"), float("nan")):
        weight = torch.zeros(4, 8)
        weight[1, 2] = value
        with pytest.raises(ValueError, match="float16 weights reach ±65504"):
            pack(weight, None, "float16")


def test_float32_where_the_quantized_engine_is_missing(monkeypatch):
    monkeypatch.setattr(linear, "storage_dtype", lambda dtype: "float32")
    layer = pack(rand(32, 16), None, "int8")
    assert layer.dtype == "float32" and layer.nbytes == 4 * 32 * 16 == weight_bytes(32, 16, "int8")


def test_bytes_held():
    assert pack(rand(32, 512), rand(32), "float32").nbytes == 4 * 32 * 512 + 4 * 32
    assert pack(rand(32, 512), None, "float16").nbytes == weight_bytes(32, 512, "float16") == 2 * 32 * 512
    assert weight_bytes(896, 4864, "int8") < weight_bytes(896, 4864, "float16") < weight_bytes(896, 4864, "float32")


_AVX2 = "+avx2,+fma,+f16c"
_AVX512 = f"{_AVX2},+avx512f,+avx512bw,+avx512vl"


@pytest.mark.parametrize(
    ("name", "features", "which"),
    [("x86-64", _AVX2, ""), ("x86-64", _AVX512, ""), ("znver4", f"{_AVX512},+avx512vnni,+avx512bf16", "bfloat16")],
)
def test_this_file_on_other_processors(name, features, which):
    """Without VNNI and without registers of 16 lanes: other tiles, and 16-bit sums that would saturate. And where the
    products of bfloat16 are an instruction's, if this processor has it."""
    if "NUMBA_CPU_FEATURES" in os.environ or not all(map(has, features.replace("+", "").split(","))):
        pytest.skip("this is the run on another processor, or the processor is none of these")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", which, __file__]
    environment = {**os.environ, "NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features}
    run = subprocess.run(command, env=environment, capture_output=True)
    assert run.returncode == 0, run.stdout.decode()


class _Watched:
    """Rows that note how many of them were asked for at once."""

    def __init__(self, weight):
        self.weight, self.shape, self.asked = weight, weight.shape, []

    def __getitem__(self, rows):
        found = self.weight[rows]
        self.asked.append(len(found))
        return found


@DTYPES
def test_a_weight_is_packed_some_rows_at_a_time_to_the_same_product(dtype):
    weight, x = rand(2100, 200), rand(3, 200, seed=1)
    rows = _Watched(weight)
    assert torch.equal(pack(rows, None, dtype)(x), pack(weight, None, dtype)(x))
    assert sum(rows.asked) == 2100
    assert max(rows.asked) <= 1310

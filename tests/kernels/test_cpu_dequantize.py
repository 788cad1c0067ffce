"""The formats of ggml against the gguf package, bit for bit."""

import gguf
import numpy as np
import pytest

from kernels.cpu.dequantize import FORMATS, dequantize


@pytest.mark.filterwarnings("ignore::RuntimeWarning")     # scales of any bits: some are infinite or no numbers
@pytest.mark.parametrize("name", sorted(FORMATS))
def test_values_are_those_of_gguf_to_the_bit(name):
    quantization = gguf.GGMLQuantizationType[name]
    num_values, num_bytes = gguf.GGML_QUANT_SIZES[quantization]
    raw = np.random.default_rng(0).integers(0, 256, (500, num_bytes), dtype=np.uint8)
    expected = gguf.dequantize(raw, quantization).reshape(-1)
    found = dequantize(raw, name)
    assert found.shape == (500 * num_values,)
    is_number = ~np.isnan(expected)
    assert is_number.mean() > 0.8
    assert np.array_equal(found.view(np.uint32)[is_number], expected.view(np.uint32)[is_number])
    assert np.isnan(found[~is_number]).all()


def test_blocks_are_left_as_they_are_and_may_be_written_afterwards():
    raw = np.random.default_rng(1).integers(0, 256, (3, 34), dtype=np.uint8)
    before = raw.copy()
    dequantize(raw, "Q8_0")
    assert np.array_equal(raw, before)
    raw[0, 0] = 1

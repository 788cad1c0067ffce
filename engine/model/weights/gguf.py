"""Tensors of a GGUF file, dequantised one at a time, in the layout and under the conventions of transformers."""

from collections.abc import Callable, Mapping

import gguf
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.errors import ConfigError
from engine.model.weights.gguf_file import GGUFFile
from engine.model.weights.source import StoredTensor

Array = npt.NDArray[np.float32]
_CHUNK_ELEMENTS = 1 << 18  # dequantised at a time: the temporaries then stay in the CPU's cache


class GGUFSource:
    """`restore` undoes what the conversion to GGUF did to a family's tensors, given the stored name and values."""

    def __init__(self, file: GGUFFile, restore: Callable[[str, Array], Array]) -> None:
        self._file, self._restore = file, restore
        self.tensors: Mapping[str, StoredTensor] = {
            name: StoredTensor(tensor.shape, file.path.name) for name, tensor in file.tensors.items()
        }

    def read(self, name: str) -> Tensor:
        return torch.from_numpy(self._restore(name, dequantize(self._file, name)))


def dequantize(file: GGUFFile, name: str) -> Array:
    """float32, in a fresh array of the tensor's shape."""
    tensor = file.tensors[name]
    raw, columns = file.raw_rows(name), tensor.shape[-1]
    values = np.empty((len(raw), columns), np.float32)
    step = max(1, _CHUNK_ELEMENTS // columns)
    try:
        for begin in range(0, len(raw), step):
            values[begin:begin + step] = _dequantize_rows(raw[begin:begin + step], tensor.quantization)
    except NotImplementedError as error:
        raise ConfigError(f"model: {file.path}: tensor {name} has type {tensor.quantization.name}: {error}") from error
    return values.reshape(tensor.shape)


def _dequantize_rows(raw: npt.NDArray[np.uint8], quantization: gguf.GGMLQuantizationType) -> Array:
    """[rows, bytes of a row] -> [rows, columns]"""
    if quantization == gguf.GGMLQuantizationType.Q5_0:
        return _dequantize_q5_0(raw)
    values: Array = gguf.dequantize(raw, quantization)
    return values


def _dequantize_q5_0(raw: npt.NDArray[np.uint8]) -> Array:
    """The same values as gguf's in 40% of the time; most of the demo model is Q5_0.

    A block is a float16 scale, 32 fifth bits, then 16 bytes of low halves: first the 16 values in their low nibbles.
    """
    blocks = raw.reshape(-1, 22)
    scales = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    nibbles = np.concatenate((blocks[:, 6:] & 15, blocks[:, 6:] >> 4), axis=1)
    fifth_bits = np.unpackbits(blocks[:, 2:6], axis=1, bitorder="little")
    steps = (nibbles | fifth_bits << 4).view(np.int8) - np.int8(16)
    values: Array = steps.astype(np.float32) * scales
    return values.reshape(len(raw), -1)

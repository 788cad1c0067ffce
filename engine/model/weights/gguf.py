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
    raw, quantization = file.raw_rows(name), tensor.quantization
    if quantization == gguf.GGMLQuantizationType.F32:
        return raw.copy().view(np.float32).reshape(tensor.shape)
    from kernels.cpu.dequantize import FORMATS  # numba is not loaded for a header alone
    from kernels.cpu.dequantize import dequantize as dequantize_blocks

    if quantization.name in FORMATS:
        return dequantize_blocks(raw, quantization.name).reshape(tensor.shape)
    try:
        return _by_gguf(raw, quantization, tensor.shape)
    except NotImplementedError as error:
        raise ConfigError(f"model: {file.path}: tensor {name} has type {quantization.name}: {error}") from error


def _by_gguf(raw: npt.NDArray[np.uint8], quantization: gguf.GGMLQuantizationType, shape: tuple[int, ...]) -> Array:
    """By the package, for formats that few files have: [rows, bytes of a row] -> values of `shape`."""
    columns = shape[-1]
    values = np.empty((len(raw), columns), np.float32)
    step = max(1, _CHUNK_ELEMENTS // columns)
    for begin in range(0, len(raw), step):
        values[begin:begin + step] = gguf.dequantize(raw[begin:begin + step], quantization)
    return values.reshape(shape)

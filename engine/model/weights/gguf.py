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
from kernels.cpu.packed import Rows

Array = npt.NDArray[np.float32]
_CHUNK_ELEMENTS = 1 << 18  # dequantised at a time: the temporaries then stay in the CPU's cache


class GGUFSource:
    """`restore` undoes what the conversion to GGUF did to a family's tensors, given the stored name and values.

    It leaves those alone of which `is_changed` says that the conversion did.
    """

    def __init__(
        self, file: GGUFFile, restore: Callable[[str, Array], Array], is_changed: Callable[[str], bool]
    ) -> None:
        self._file, self._restore, self._is_changed = file, restore, is_changed
        self.tensors: Mapping[str, StoredTensor] = {
            name: StoredTensor(tensor.shape, file.path.name) for name, tensor in file.tensors.items()
        }

    def read(self, name: str) -> Tensor:
        return torch.from_numpy(self._restore(name, dequantize(self._file, name)))

    def rows(self, name: str) -> Rows:
        from kernels.cpu.dequantize import FORMATS

        if self._is_changed(name) or self._file.tensors[name].quantization.name not in FORMATS:
            return self.read(name)
        return _QuantisedRows(self._file, name)


class _QuantisedRows:
    """The rows of one tensor, dequantised when they are asked for."""

    def __init__(self, file: GGUFFile, name: str) -> None:
        self.shape, self._name = file.tensors[name].shape, file.tensors[name].quantization.name
        self._raw = file.raw_rows(name)

    def __getitem__(self, rows: slice, /) -> Tensor:
        from kernels.cpu.dequantize import dequantize

        raw = self._raw[rows]
        return torch.from_numpy(dequantize(raw, self._name)).view(len(raw), -1)


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

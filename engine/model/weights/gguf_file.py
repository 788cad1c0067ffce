"""A GGUF file: metadata and tensor directory, read without copying tensor data; imports no torch.

Layout, little endian: "GGUF", version u32, tensor count u64, pair count u64, the pairs (key, type, value), the
directory (name, dimensions fastest first, quantisation type, offset), padding to the alignment, the tensor data.
"""

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from engine.errors import ConfigError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY, _U32, _U64 = 8, 9, 4, 10
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    shape: tuple[int, ...]              # slowest dimension first, as in torch
    quantization: GGMLQuantizationType
    offset: int                         # in the file
    num_bytes: int


class GGUFFile:
    """Memory-mapped. Raises ConfigError for a file that is no GGUF, is damaged, or ends too soon."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ConfigError(f"model: {path} is not a GGUF file (wrong magic)")
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            self.metadata, self.tensors = self._read_header()
        except (struct.error, IndexError, KeyError, ValueError) as error:
            raise ConfigError(f"model: the header of {path} is damaged or cut short: {error!r}") from error
        for name, tensor in self.tensors.items():
            if tensor.offset + tensor.num_bytes > len(self._data):
                raise ConfigError(
                    f"model: {path} is cut short: tensor {name} ends at byte {tensor.offset + tensor.num_bytes}, "
                    f"the file has {len(self._data)}"
                )

    def raw_rows(self, name: str) -> npt.NDArray[np.uint8]:
        """The tensor's quantised bytes, read-only: [rows, bytes of a row]"""
        tensor = self.tensors[name]
        data = np.frombuffer(self._data, np.uint8, tensor.num_bytes, tensor.offset)
        return data.reshape(math.prod(tensor.shape[:-1]), -1)

    def _read_header(self) -> tuple[Mapping[str, Any], Mapping[str, GGUFTensor]]:
        cursor = _Cursor(self._data, 4)
        version = cursor.scalar(_U32)
        if version not in (2, 3):
            raise ConfigError(f"model: {self.path} is GGUF version {version}; supported: 2 and 3, little endian")
        num_tensors, num_pairs = cursor.scalar(_U64), cursor.scalar(_U64)
        metadata = {cursor.string(): cursor.value(cursor.scalar(_U32)) for _ in range(num_pairs)}
        directory = []
        for _ in range(num_tensors):
            name = cursor.string()
            dimensions = [cursor.scalar(_U64) for _ in range(cursor.scalar(_U32))]
            quantization = GGMLQuantizationType(cursor.scalar(_U32))
            directory.append((name, tuple(reversed(dimensions)), quantization, cursor.scalar(_U64)))
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        begin = -(-cursor.offset // alignment) * alignment
        return metadata, {
            name: GGUFTensor(shape, quantization, begin + offset, _num_bytes(shape, quantization))
            for name, shape, quantization, offset in directory
        }


def _num_bytes(shape: tuple[int, ...], quantization: GGMLQuantizationType) -> int:
    block_size, block_bytes = GGML_QUANT_SIZES[quantization]
    if shape[-1] % block_size:
        raise ValueError(f"rows of {shape[-1]} are no multiple of {quantization.name}'s block of {block_size}")
    return math.prod(shape) // block_size * block_bytes


class _Cursor:
    def __init__(self, data: mmap.mmap, offset: int) -> None:
        self._data, self.offset = data, offset

    def scalar(self, kind: int) -> Any:
        return self._unpack(_SCALARS[kind])[0]

    def string(self) -> str:
        begin = self.offset + 8
        end = begin + self.scalar(_U64)
        if end > len(self._data):
            raise IndexError("text beyond the end of the file")
        self.offset = end
        return self._data[begin:end].decode()

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.scalar(kind)
        kind, length = self.scalar(_U32), self.scalar(_U64)
        if kind in (_STRING, _ARRAY):
            return [self.value(kind) for _ in range(length)]
        return list(self._unpack(f"{length}{_SCALARS[kind]}"))

    def _unpack(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{layout}", self._data, self.offset)
        self.offset += struct.calcsize(f"<{layout}")
        return values

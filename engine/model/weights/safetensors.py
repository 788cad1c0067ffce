"""Tensors of a Hugging Face folder: model.safetensors, or the shards that its index assigns each name to."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.errors import ConfigError
from engine.model.weights.source import StoredTensor

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


class SafetensorsSource:
    """Memory-mapped; files that the index does not name are never opened."""

    def __init__(self, folder: Path) -> None:
        self._files: dict[str, Any] = {}
        if (folder / _SINGLE).exists():
            path = folder / _SINGLE
            self._file_of = dict.fromkeys(self._open(path).keys(), path)
        elif (folder / _INDEX).exists():
            self._file_of = self._indexed(folder / _INDEX)
        else:
            raise ConfigError(_nothing_to_load(folder))
        self.tensors: Mapping[str, StoredTensor] = {
            name: StoredTensor(tuple(self._files[str(path)].get_slice(name).get_shape()), path.name)
            for name, path in self._file_of.items()
        }

    def rows(self, name: str) -> Tensor:
        return self.read(name)

    def read(self, name: str) -> Tensor:
        path = self._file_of[name]
        try:
            tensor: Tensor = self._files[str(path)].get_tensor(name)
        except SafetensorError as error:
            raise ConfigError(f"model: cannot read tensor {name} of {path}: {error}") from error
        if not tensor.is_floating_point():
            raise ConfigError(f"model: tensor {name} of {path} has dtype {tensor.dtype}; quantised weights need GGUF")
        return tensor

    def _open(self, path: Path) -> Any:
        if str(path) not in self._files:
            try:
                self._files[str(path)] = safe_open(str(path), framework="pt")
            except FileNotFoundError as error:
                raise ConfigError(f"model: weight file {path} is missing; {_INDEX} names it") from error
            except (SafetensorError, OSError) as error:
                raise ConfigError(f"model: weight file {path} is damaged or cut short: {error}") from error
        return self._files[str(path)]

    def _indexed(self, index: Path) -> dict[str, Path]:
        try:
            assignment: dict[str, str] = json.loads(index.read_text())["weight_map"]
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"model: {index} is not a safetensors index: {error!r}") from error
        held = {file: set(self._open(index.parent / file).keys()) for file in sorted(set(assignment.values()))}
        for name, file in assignment.items():
            if name not in held[file]:
                raise ConfigError(f"model: {_INDEX} says tensor {name} is in {index.parent / file}, but it is not")
        return {name: index.parent / file for name, file in assignment.items()}


def _nothing_to_load(folder: Path) -> str:
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if pickles:
        return (
            f"model: {folder} holds only pickle weights ({pickles[0]}), which can run code when opened; "
            f"convert them to safetensors"
        )
    return f"model: {folder} holds neither {_SINGLE} nor {_INDEX}"

"""TensorSource: named tensors in files, read one at a time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from kernels.cpu.packed import Rows


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as a file's header tells of it."""

    shape: tuple[int, ...]
    file: str


class TensorSource(Protocol):
    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """What there is, by stored name."""

    def read(self, name: str) -> Tensor:
        """One tensor, in a floating dtype of the source's choice; may share memory with the file."""

    def rows(self, name: str) -> Rows:
        """The same, read some rows at a time."""

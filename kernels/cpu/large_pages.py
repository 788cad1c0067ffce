"""Memory in pages of 2 MiB where the system has them: what is read from end to end meets fewer page tables."""

import mmap
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Scalar = TypeVar("Scalar", bound=np.generic)


def allocate(num_bytes: int) -> mmap.mmap:
    """Private memory of zeros; pages that nobody touches are not there."""
    memory = mmap.mmap(-1, max(1, num_bytes), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def zeros(size: int, dtype: type[Scalar]) -> NDArray[Scalar]:
    """[size], in memory of its own."""
    return np.frombuffer(allocate(size * np.dtype(dtype).itemsize), dtype, size)

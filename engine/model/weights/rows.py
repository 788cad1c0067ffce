"""Weights that are read some rows at a time, so that a large one is never whole in memory before it is packed."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from kernels.cpu.packed import Rows

_ELEMENTS_AT_A_TIME = 1 << 18


class Stacked:
    """The rows of `parts`, one part below the other, or the first `num_rows` of them."""

    def __init__(self, parts: Sequence[Rows], num_rows: int | None = None) -> None:
        self._parts = parts
        total = sum(part.shape[0] for part in parts)
        self.shape = (total if num_rows is None else min(num_rows, total), *parts[0].shape[1:])

    def __getitem__(self, rows: slice, /) -> Tensor:
        first, end, _ = rows.indices(self.shape[0])
        found, begin = [], 0
        for part in self._parts:
            low, high = max(first - begin, 0), min(end - begin, part.shape[0])
            if low < high:
                found.append(part[low:high])
            begin += part.shape[0]
        return found[0] if len(found) == 1 else torch.cat(found)


def copied(rows: Rows, device: torch.device, dtype: torch.dtype) -> Tensor:
    """All of them, in memory of their own."""
    shape = tuple(rows.shape)
    if device.type == "cpu":
        from kernels.cpu.large_pages import zeros

        target = torch.from_numpy(zeros(math.prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)
    else:
        target = torch.empty(shape, dtype=dtype, device=device)
    for some in _in_steps(rows):
        target[some] = rows[some].to(device, dtype)
    return target


def _in_steps(rows: Rows) -> Iterator[slice]:
    num_rows, columns = rows.shape
    step = max(1, _ELEMENTS_AT_A_TIME // columns)
    return (slice(first, min(first + step, num_rows)) for first in range(0, num_rows, step))

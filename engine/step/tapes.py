"""Tapes: what a CPU computes for a step, recorded once for each size and replayed from then on.

A step is hundreds of kernels, between which the interpreter takes its time: of a small decode a third. A tape runs
them in one call (`kernels.cpu.recording`). Its inputs stand at fixed places (InputBuffers), and it fits any step of as
many rows.
"""

from bisect import bisect_left
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from torch import Tensor


def row_counts(max_rows: int) -> tuple[int, ...]:
    """Sizes of steps: what is computed for nothing takes less than the interpreter would."""
    counts = (*range(8, 257, 8), *range(272, 513, 16), *range(544, max_rows + 1, 32))
    return tuple(count for count in counts if count <= max_rows)


class Tapes:
    """Recordings of one computation at several sizes; one set of memory serves them all."""

    def __init__(self, sizes: Sequence[int]) -> None:
        """`sizes`: numbers of rows, ascending."""
        from kernels.cpu.recording import Workspace

        self._sizes = tuple(sizes)
        self._workspace = Workspace(max(sizes))
        self._recorded: dict[Hashable, tuple[Tensor, Any]] = {}
        self.is_possible: bool | None = None           # not known before the first is made

    def size_for(self, num_rows: int) -> int | None:
        """The smallest size that holds so many rows; None if none does, or if nothing can be recorded."""
        place = bisect_left(self._sizes, num_rows)
        return self._sizes[place] if self.is_possible is not False and place < len(self._sizes) else None

    def run(self, size: int, compute: Callable[[], Tensor]) -> Tensor:
        """What `compute` gives for that size; it lies where the next run's result lies too."""
        from kernels.cpu.recording import record
        from kernels.cpu.threads import replay

        if size in self._recorded:
            result, recording = self._recorded[size]
            replay(recording)
            return result
        if self.is_possible is False:
            return self.once(compute)
        is_first = self.is_possible is None
        result, recording = record(compute, self._workspace, check=is_first)
        self.is_possible = recording is not None
        if recording is None:
            return result if is_first else self.once(compute)
        self._recorded[size] = result, recording
        if not is_first:
            replay(recording)
        return result

    def once(self, compute: Callable[[], Tensor]) -> Tensor:
        """What `compute` gives, not recorded, in the same memory."""
        from kernels.cpu.recording import working_in

        with working_in(self._workspace):
            return compute()

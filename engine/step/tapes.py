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
    """Sizes of steps of up to `max_rows`: what is computed for nothing takes less than the interpreter would."""
    counts = (*range(8, 257, 8), *range(272, 513, 16), *range(544, max_rows + 32, 32))
    return counts[: bisect_left(counts, max_rows) + 1]


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

    @property
    def next_size(self) -> int | None:
        """One that has no recording yet; None if all have, or if it is not known to be possible."""
        if not self.is_possible:
            return None
        return next((size for size in self._sizes if size not in self._recorded), None)

    def prepare(self, size: int, compute: Callable[[], Tensor]) -> None:
        """Records `compute` for that size without running it. Not before another size has shown that it is possible."""
        from kernels.cpu.recording import record

        result, recording = record(compute, self._workspace, check=False)
        self.is_possible = recording is not None
        if recording is not None:
            self._recorded[size] = result, recording

    def run(self, size: int, compute: Callable[[], Tensor]) -> Tensor:
        """What `compute` gives for that size; it lies where the next run's result lies too."""
        from kernels.cpu.recording import record
        from kernels.cpu.threads import replay

        if self.is_possible and size not in self._recorded:
            self.prepare(size, compute)
        if size in self._recorded:
            result, recording = self._recorded[size]
            replay(recording)
            return result
        if self.is_possible is False:
            return self.once(compute)
        result, recording = record(compute, self._workspace)
        self.is_possible = recording is not None
        if recording is not None:
            self._recorded[size] = result, recording
        return result

    def once(self, compute: Callable[[], Tensor]) -> Tensor:
        """What `compute` gives, not recorded, in the same memory."""
        from kernels.cpu.recording import working_in

        with working_in(self._workspace):
            return compute()

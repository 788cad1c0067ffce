"""Decode graphs: a decode step is recorded once for each padded batch size, and replayed from then on.

A decode step launches hundreds of small kernels, which takes the host longer than the device computes. A CUDA graph
launches them all at once. It fixes addresses, grids and compiled kernels: inputs stand at fixed places (InputBuffers),
the batch is padded to a size that was recorded, and every kernel is compiled before.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_WARM_UP_RUNS = 2                              # the first compiles, the second shows that nothing is left to compile


def decode_batch_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Sizes worth a graph: fine where a row more is a good part of the step, coarse where it is not."""
    sizes = [1, 2, 4, *range(8, 33, 8), *range(48, 129, 16), *range(160, 257, 32), *range(320, max_num_seqs + 1, 64)]
    return (*(size for size in sizes if size < max_num_seqs), max_num_seqs)


class Recorded:
    """A computation on tensors at fixed addresses. On a CPU it is the function itself, called each time."""

    def __init__(self, compute: Callable[[], Tensor], device: torch.device, pool: Any) -> None:
        self._compute = compute
        if device.type == "cuda":
            self._record(pool)

    def __call__(self) -> Tensor:
        """The result; on a GPU always the same tensor, which the next call of any recording may overwrite."""
        return self._compute()

    def _record(self, pool: Any) -> None:
        compute = self._compute
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP_RUNS):
                compute()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            result = compute()

        def replay() -> Tensor:
            graph.replay()
            return result

        self._compute = replay


class DecodeGraphs:
    """The recordings of one device, by batch size."""

    def __init__(self, batch_sizes: Sequence[int], device: torch.device) -> None:
        self.batch_sizes = tuple(sorted(batch_sizes))
        self._device = device
        self._recorded: dict[int, Recorded] = {}
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def batch_size_for(self, num_requests: int) -> int | None:
        """The smallest recorded batch that holds `num_requests`; None if none does."""
        place = bisect_left(self.batch_sizes, num_requests)
        return self.batch_sizes[place] if place < len(self.batch_sizes) else None

    def record(self, batch_size: int, compute: Callable[[], Tensor]) -> None:
        """Larger batches first: smaller ones then find room in the same pool."""
        self._recorded[batch_size] = Recorded(compute, self._device, self._pool)

    def replay(self, batch_size: int) -> Tensor:
        return self._recorded[batch_size]()

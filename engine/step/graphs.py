"""Decode graphs: a decode step is recorded once for each batch size, and replayed from then on.

A decode step launches hundreds of small kernels, which takes the host longer than the device computes. A recording
launches them at once. It fixes addresses, grids and compiled kernels: inputs stand at fixed places (InputBuffers),
and every kernel is compiled before. On a GPU it is a CUDA graph, all are made at the start, and batches are padded to a
size that has one; on a CPU it is a tape of kernel calls (`engine.step.tapes`), made when a size first occurs.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from engine.step.tapes import Tapes

_WARM_UP_RUNS = 2                              # the first compiles, the second shows that nothing is left to compile


def decode_batch_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Sizes worth a graph: fine where a row more is a good part of the step, coarse where it is not."""
    sizes = [1, 2, 4, *range(8, 33, 8), *range(48, 129, 16), *range(160, 257, 32), *range(320, max_num_seqs + 1, 64)]
    return (*(size for size in sizes if size < max_num_seqs), max_num_seqs)


def cpu_batch_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """All sizes at which the interpreter's share of a step can be seen: no row is computed for nothing."""
    return tuple(range(1, min(max_num_seqs, 64) + 1))


def batch_sizes_for(device: torch.device, max_num_seqs: int) -> tuple[int, ...]:
    """Of the decode steps that an engine on `device` replays."""
    return (decode_batch_sizes if device.type == "cuda" else cpu_batch_sizes)(max_num_seqs)


class _CudaGraph:
    """The result is always the same tensor, which the next call of any graph of the pool may overwrite."""

    def __init__(self, compute: Callable[[], Tensor], pool: Any) -> None:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP_RUNS):
                compute()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._result = compute()

    def __call__(self) -> Tensor:
        self._graph.replay()
        return self._result


class DecodeGraphs:
    """The recordings of one device, by batch size."""

    def __init__(self, batch_sizes: Sequence[int], device: torch.device) -> None:
        self.batch_sizes = tuple(sorted(batch_sizes))
        self._device = device
        self._recorded: dict[int, _CudaGraph] = {}
        self._computes: dict[int, Callable[[], Tensor]] = {}           # what tapes are made of
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        self._tapes = Tapes(self.batch_sizes) if device.type == "cpu" and batch_sizes else None

    def batch_size_for(self, num_requests: int) -> int | None:
        """The smallest recorded batch that holds `num_requests`; None if none does."""
        if self._tapes is not None:
            return self._tapes.size_for(num_requests)
        place = bisect_left(self.batch_sizes, num_requests)
        return self.batch_sizes[place] if place < len(self.batch_sizes) else None

    def record(self, batch_size: int, compute: Callable[[], Tensor]) -> None:
        """Larger batches first: smaller ones then find room in the same pool."""
        if self._tapes is None:
            self._recorded[batch_size] = _CudaGraph(compute, self._pool)
        else:
            self._computes[batch_size] = compute

    @property
    def next_size(self) -> int | None:
        """A size that will be recorded only when it occurs; None on a GPU, where all have been."""
        return None if self._tapes is None else self._tapes.next_size

    def prepare(self, batch_size: int) -> None:
        """Records that size, which has not occurred yet."""
        assert self._tapes is not None                 # or there would be no such size
        self._tapes.prepare(batch_size, self._computes[batch_size])

    def replay(self, batch_size: int) -> Tensor:
        if self._tapes is not None:
            return self._tapes.run(batch_size, self._computes[batch_size])
        return self._recorded[batch_size]()

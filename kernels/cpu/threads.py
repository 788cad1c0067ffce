"""The worker threads that CPU kernels share: a kernel over [start, stop) of its work items, split among them.

numba's own threading layer is not used: it clashes with torch's OpenMP and is not safe to enter from two threads.
Kernels are compiled with nogil, so plain threads run them side by side. There are as many threads as torch uses
(`torch.set_num_threads`), the caller's among them. Items are independent, so the split never shows in a result.
"""

import functools
import itertools
import queue
import threading
from collections.abc import Callable
from typing import Any

import torch

_CHUNKS_PER_THREAD = 4  # more than one, so that a thread that was held up leaves its work to the others


class _Job:
    """One kernel call, cut into chunks that whoever is free takes."""

    def __init__(self, kernel: Callable[..., None], arguments: tuple[Any, ...], num_items: int, num_chunks: int):
        self._kernel, self._arguments = kernel, arguments
        self._bounds = [num_items * i // num_chunks for i in range(num_chunks + 1)]
        self._next = itertools.count()  # next() on it is atomic
        self._finished = threading.Semaphore(0)
        self._error: BaseException | None = None

    def work(self) -> None:
        while (chunk := next(self._next)) < len(self._bounds) - 1:
            try:
                self._kernel(*self._arguments, self._bounds[chunk], self._bounds[chunk + 1])
            except BaseException as error:
                self._error = error
            self._finished.release()

    def wait(self) -> None:
        for _ in self._bounds[1:]:
            self._finished.acquire()
        if self._error is not None:
            raise self._error


class WorkerPool:
    """Threads that wait for jobs; `run` may be called from several threads at once."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        for _ in range(num_threads - 1):
            threading.Thread(target=self._serve, name="conveyor-kernel", daemon=True).start()

    def _serve(self) -> None:
        while True:
            self._jobs.get().work()

    def run(self, kernel: Callable[..., None], arguments: tuple[Any, ...], num_items: int, min_items: int) -> None:
        """kernel(*arguments, start, stop) over [0, num_items), at least `min_items` in a call."""
        num_chunks = min(self.num_threads * _CHUNKS_PER_THREAD, num_items // max(min_items, 1))
        if self.num_threads == 1 or num_chunks < 2:
            kernel(*arguments, 0, num_items)
            return
        job = _Job(kernel, arguments, num_items, num_chunks)
        for _ in range(min(self.num_threads, num_chunks) - 1):
            self._jobs.put(job)
        job.work()
        job.wait()


@functools.cache
def _pool(num_threads: int) -> WorkerPool:
    return WorkerPool(num_threads)


def run(kernel: Callable[..., None], arguments: tuple[Any, ...], num_items: int, *, min_items: int = 1) -> None:
    """Runs a kernel on the process's worker threads and returns when all of it is done."""
    _pool(torch.get_num_threads()).run(kernel, arguments, num_items, min_items)

"""The worker threads that CPU kernels share.

numba's own threading layer is not used: it clashes with torch's OpenMP and is not safe to enter from two threads.
There are as many threads as torch uses (`torch.set_num_threads`), the caller's among them. A kernel's items are
independent, so how they are split never shows in a result. How a call reaches the workers: `kernels.cpu.parallel`.
"""

import ctypes
import functools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kernels.cpu import parallel
from kernels.cpu.recording import Recording, current

Tape = NDArray[np.int64]

_NO_TAPE: Tape = np.zeros(0, np.int64)
_NO_BOARD = np.zeros(0, np.int64)
_CHUNKS_PER_THREAD = 16  # more than one, so that a thread that was held up leaves its work to the others


class WorkerPool:
    """Threads that wait for jobs; `run` may be called from several threads at once."""

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self._board = np.zeros(parallel.WORKERS + 2 * parallel.LINE * (num_threads - 1), np.int64)
        self._lines = range(parallel.WORKERS, self._board.size, 2 * parallel.LINE)
        semaphore_init = ctypes.CDLL(None).sem_init
        for line in self._lines:
            if semaphore_init(ctypes.c_void_p(self._board[line + parallel.LINE :].ctypes.data), 0, 0):
                raise OSError("this system has no unnamed semaphores for the threads of CPU kernels")
        self._threads = [
            threading.Thread(target=parallel.serve, args=(self._board, line), name="conveyor-kernel", daemon=True)
            for line in self._lines
        ]
        for thread in self._threads:
            thread.start()

    def run(
        self, launch: Callable[..., None], arguments: tuple[Any, ...], num_items: int, min_items: int, tape: Tape,
        *, is_dry: bool = False,
    ) -> None:  # fmt: skip
        """launch(board, tape, num_items, number of chunks, *arguments), at least `min_items` in a chunk."""
        num_chunks = min(self.num_threads * _CHUNKS_PER_THREAD, num_items // max(min_items, 1), parallel.MOST_CHUNKS)
        board = _NO_BOARD if is_dry else self._board
        launch(board, tape, num_items, num_chunks if self.num_threads > 1 else 1, *arguments)
        self._raise_if_failed()

    def replay(self, tape: Tape) -> None:
        parallel.replay(self._board, tape)
        self._raise_if_failed()

    def _raise_if_failed(self) -> None:
        if self._board[parallel.FAILED]:
            self._board[parallel.FAILED] = 0
            raise RuntimeError("a CPU kernel failed: no memory for its scratch, or arrays that do not fit together")

    @property
    def sleeping(self) -> list[bool]:
        """Of each worker, whether it waits to be woken."""
        return [self._board[line] == 1 for line in self._lines]

    def close(self) -> None:
        """End the threads. The pool is not used again."""
        parallel.stop(self._board)
        for thread in self._threads:
            thread.join()


@functools.cache
def _pool(num_threads: int) -> WorkerPool:
    return WorkerPool(num_threads)


def max_chunks() -> int:
    """Pieces into which a call is cut, if it has as many items."""
    return torch.get_num_threads() * _CHUNKS_PER_THREAD


def run(launch: Callable[..., None], arguments: tuple[Any, ...], num_items: int, *, min_items: int = 1) -> None:
    """Runs a kernel's launcher on the process's worker threads and returns when all of it is done.

    Where the call is recorded, `min_items` is that of this call's data and says nothing of the next.
    """
    pool, recording = _pool(torch.get_num_threads()), current()
    if recording is None:
        pool.run(launch, arguments, num_items, min_items, _NO_TAPE)
    else:
        recording.keep(arguments)
        pool.run(launch, arguments, num_items, 1, recording.tape, is_dry=recording.is_dry)


def replay(recording: Recording) -> None:
    """Runs the kernels of a recording again."""
    _pool(torch.get_num_threads()).replay(recording.tape)

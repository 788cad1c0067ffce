"""A computation of CPU kernels recorded once and replayed without the interpreter: what a CUDA graph is to a GPU.

A decode step of few rows is hundreds of kernels of microseconds, between which Python takes as long again. While a
recording is made, every kernel call goes onto a tape with its arguments (`kernels.cpu.parallel`); a replay runs them in
order in one call. Addresses are those of the recording: what the computation reads must stay where it is, and its own
intermediate results come from a Workspace, which outlives it.

What is not a kernel of ours leaves nothing on the tape. A computation that calls any other op that touches data is
therefore not recorded, but computed each time.
"""

import importlib
import math
import mmap
import sys
from bisect import bisect_right, insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.cpu.large_pages import allocate
from kernels.registry import IMPLEMENTATIONS

_TAPE_WORDS = 1 << 17  # 1 MiB: some 1,500 kernel calls
_ALLOCATIONS = frozenset({"empty", "empty_like", "empty_strided", "new_empty"})


class Workspace:
    """Memory for the intermediate results of computations on up to `max_rows` rows, one after the other.

    A buffer is free when nothing but the workspace refers to it, as with any allocator; so a recording uses the memory
    of what is dead by then, and every recording uses that of the others. Unlike malloc's, this memory is never given
    back: the system would hand it out again page by page, at more cost than many a kernel.
    """

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self._buffers: dict[int, list[tuple[mmap.mmap, NDArray[np.uint8]]]] = {}  # bytes of a row -> memory, lent array
        self._places: list[tuple[int, mmap.mmap]] = []             # (address, memory), ascending

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """An array; memory of its own, if its first dimension is more than max_rows."""
        if shape[0] > self.max_rows:
            return np.empty(shape, dtype)
        row_bytes = math.prod(shape[1:]) * np.dtype(dtype).itemsize
        return self._free(row_bytes)[: shape[0] * row_bytes].view(dtype).reshape(shape)

    def _free(self, row_bytes: int) -> NDArray[np.uint8]:
        buffers = self._buffers.setdefault(row_bytes, [])
        for index in range(len(buffers)):
            if sys.getrefcount(buffers[index][1]) == 2:            # the tuple's, and the argument's
                return buffers[index][1]
        memory = allocate(row_bytes * self.max_rows)
        buffers.append((memory, np.frombuffer(memory, np.uint8)))
        insort(self._places, (_address(buffers[-1][1]), memory), key=itemgetter(0))
        return buffers[-1][1]

    def holds(self, array: NDArray[Any]) -> bool:
        """Whether the array lies in one of the buffers."""
        return self._memory_at(_address(array)) is not None

    def unowned(self, tensor: Tensor) -> Tensor:
        """The same float32 numbers, without keeping their buffer from being lent again."""
        memory = self._memory_at(tensor.data_ptr())
        if memory is None:
            return tensor
        return torch.from_numpy(np.frombuffer(memory, np.float32, tensor.numel())).view(tensor.shape)

    def _memory_at(self, address: int) -> mmap.mmap | None:
        after = bisect_right(self._places, address, key=itemgetter(0))
        if not after:
            return None
        start, memory = self._places[after - 1]
        return memory if address < start + len(memory) else None


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


class Recording:
    """One tape and what must live as long as it."""

    def __init__(self, workspace: Workspace, *, is_dry: bool = False) -> None:
        self.is_dry = is_dry                                       # calls are taken down, and nothing runs
        self.tape = np.zeros(_TAPE_WORDS, np.int64)
        self.tape[0] = 1
        self.workspace = workspace
        self._kept: list[Any] = []

    def keep(self, arguments: Any) -> None:
        """Holds the arrays of a call that are nobody else's."""
        for argument in arguments:
            if isinstance(argument, tuple):
                self.keep(argument)
            elif isinstance(argument, np.ndarray) and not self.workspace.holds(argument):
                self._kept.append(argument)

    def finish(self) -> bool:
        """Cuts the tape off behind its last entry; False if it was too short."""
        if self.tape[0] < 0:
            return False
        self.tape = self.tape[: self.tape[0]].copy()
        return True


_current: ContextVar[Recording | None] = ContextVar("recording", default=None)
_workspace: ContextVar[Workspace | None] = ContextVar("workspace", default=None)


def current() -> Recording | None:
    """The recording that is being made on this thread."""
    return _current.get()


@contextmanager
def working_in(workspace: Workspace) -> Iterator[None]:
    """Results of kernels that are called here lie in the workspace."""
    token = _workspace.set(workspace)
    try:
        yield
    finally:
        _workspace.reset(token)


@contextmanager
def _being_made(recording: Recording) -> Iterator[None]:
    token = _current.set(recording)
    try:
        with working_in(recording.workspace):
            yield
    finally:
        _current.reset(token)


class _OtherOps(TorchDispatchMode):
    """Notes the ops of torch that touch data; those of ours are called so that what they call is noted as well."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """torch would load all of its compiler, for a second and 100 MB, to tell it to keep off this class."""
        return False

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = op.overloadpacket.__name__
        if op.namespace == "conveyor":
            implementation = getattr(importlib.import_module(f"kernels.cpu.{IMPLEMENTATIONS[name][0]}"), name)
            with self:
                return implementation(*args, **(kwargs or {}))
        result = op(*args, **(kwargs or {}))
        if name not in _ALLOCATIONS and not _is_view(op, args, result):
            self.found.add(name)
        return result


def _is_view(op: Any, args: Any, result: Any) -> bool:
    """Whether an op has written nothing and returned memory that it was given."""
    given = {arg.untyped_storage().data_ptr() for arg in args if isinstance(arg, Tensor)}
    results = result if isinstance(result, (tuple, list)) else [result]
    return not op._schema.is_mutable and all(
        isinstance(part, Tensor) and part.untyped_storage().data_ptr() in given for part in results
    )


def record(
    compute: Callable[[], Tensor], workspace: Workspace, *, check: bool = True
) -> tuple[Tensor, Recording | None]:
    """(result, recording), or (result, None) where something but our kernels touches data, or the tape is too short.

    With the check, kernels run while they are recorded: the result is that of the computation. Without it, where a
    computation of the same ops has been recorded before, calls are taken down and no kernel runs: the result is where
    that of a replay will lie, until the next recording or replay with this workspace.
    """
    recording, others = Recording(workspace, is_dry=not check), _OtherOps()
    with _being_made(recording), others if check else nullcontext():
        result = compute()
    if others.found or not recording.finish():
        return result, None
    return workspace.unowned(result), recording


def empty(shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> NDArray[Any]:
    """Memory for a result: of the workspace, if there is one."""
    workspace = _workspace.get()
    return np.empty(shape, dtype) if workspace is None else workspace.empty(shape, dtype)


def empty_tensor(shape: tuple[int, ...]) -> Tensor:
    """The same as a float32 tensor."""
    return torch.empty(shape) if _workspace.get() is None else torch.from_numpy(empty(shape))

"""InputBuffers: where a step's integers cross to the device, in two copies and without an allocation."""

import math
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from engine.model.inputs import BatchInputs, StepInputs
from engine.step.arrays import StepArrays

_ALIGNMENT_BYTES = 16                                      # a kernel compiled for aligned pointers serves every step
_TABLE_STRIDE = 16                                         # likewise for the block table's rows
_NUM_WIDE = 6                                              # arrays of int64; the others are narrow, of int32


class _Area:
    """One integer width: a few areas on the host, used in turn, and one on the device."""

    def __init__(self, dtype: torch.dtype, device: torch.device, num_steps: int) -> None:
        self._dtype, self._device, self._num_steps = dtype, device, num_steps
        self._alignment = _ALIGNMENT_BYTES // dtype.itemsize
        self._turn = 0
        self.reserve(1024)

    def reserve(self, size: int) -> None:
        is_cuda = self._device.type == "cuda"
        self._host = [torch.empty(size, dtype=self._dtype, pin_memory=is_cuda) for _ in range(self._num_steps)]
        self._numpy = [host.numpy() for host in self._host]
        self._copied = [torch.cuda.Event() for _ in self._host] if is_cuda else []  # type: ignore[no-untyped-call]
        self._on_device = torch.empty(size, dtype=self._dtype, device=self._device)
        self._shapes: list[tuple[int, ...]] = []           # of the last step, and where its arrays lie
        self._offsets: list[int] = []
        self._size = 0
        self._views: list[Tensor] = []

    def load(self, arrays: list[np.ndarray]) -> list[Tensor]:
        """The arrays on the device, each at an aligned offset that depends on the shapes alone."""
        shapes = [array.shape for array in arrays]
        if shapes != self._shapes:
            self._lay_out(shapes)
        self._turn = (self._turn + 1) % self._num_steps
        if self._copied:
            self._copied[self._turn].synchronize()         # long over, unless steps without results ran ahead
        host = self._numpy[self._turn]
        for array, offset in zip(arrays, self._offsets, strict=True):
            host[offset : offset + array.size] = array.ravel()
        self._on_device[: self._size].copy_(self._host[self._turn][: self._size], non_blocking=True)
        if self._copied:
            self._copied[self._turn].record()
        return self._views

    def _lay_out(self, shapes: list[tuple[int, ...]]) -> None:
        """Steps of the same shapes follow each other while the same requests decode."""
        sizes = [math.prod(shape) for shape in shapes]
        starts = [0, *accumulate(-(-size // self._alignment) * self._alignment for size in sizes)]
        if starts[-1] > len(self._on_device):
            self.reserve(2 * starts[-1])
        self._shapes, self._size, self._offsets = shapes, starts[-1], starts[:-1]
        self._views = [
            self._on_device[offset : offset + size].view(shape)
            for offset, size, shape in zip(self._offsets, sizes, shapes, strict=True)
        ]


class InputBuffers:
    """Equal shapes give tensors at equal addresses, so a captured graph finds its inputs where it left them.

    The host side is filled while up to `num_steps` - 1 earlier steps are still to be copied from it. What `load`
    returned is overwritten by the next, in the order of the device's stream.
    """

    def __init__(self, device: torch.device, num_steps: int = 2) -> None:
        self._wide = _Area(torch.int64, device, num_steps)
        self._narrow = _Area(torch.int32, device, num_steps)

    def reserve(self, num_rows: int, num_entries: int, max_blocks: int) -> None:
        """Room for steps of that size: no `load` of one moves the buffers afterwards."""
        self._wide.reserve(_NUM_WIDE * (num_rows + 2))
        self._narrow.reserve(num_entries * (table_width(max_blocks) + 2) + 16)

    def load(self, arrays: StepArrays, max_blocks: int | None = None) -> StepInputs:
        """`max_blocks` widens the block table to that of other steps."""
        block_table = _widened(arrays.block_table, table_width(max_blocks or arrays.block_table.shape[1]))
        input_ids, source, positions, rope_lengths, slot_mapping, logits_indices = self._wide.load([
            arrays.input_ids, arrays.source, arrays.positions, arrays.rope_lengths, arrays.slot_mapping,
            arrays.logits_indices,
        ])  # fmt: skip
        query_start_loc, seq_lens, block_tables = self._narrow.load(
            [arrays.query_start_loc, arrays.seq_lens, block_table]
        )
        batch = BatchInputs(
            input_ids=input_ids, positions=positions, rope_lengths=rope_lengths, query_start_loc=query_start_loc,
            seq_lens=seq_lens, block_table=block_tables, slot_mapping=slot_mapping,
            max_query_len=arrays.max_query_len,
        )  # fmt: skip
        return StepInputs(batch, source, logits_indices)


def table_width(max_blocks: int) -> int:
    """Columns of a block table that has at least `max_blocks`."""
    return -(-max_blocks // _TABLE_STRIDE) * _TABLE_STRIDE


def _widened(block_table: np.ndarray, width: int) -> np.ndarray:
    widened = np.zeros((len(block_table), width), np.int32)
    widened[:, : block_table.shape[1]] = block_table
    return widened

"""Token ids to rows of an embedding table on a CPU, as kernels that can be recorded."""

import numpy as np
import torch
from torch import Tensor

from kernels.cpu import threads
from kernels.cpu.arrays import flat
from kernels.cpu.jit import kernel
from kernels.cpu.parallel import job, run_job
from kernels.cpu.recording import empty, empty_tensor
from kernels.cpu.simd import half_to_float

_CHUNK_ELEMENTS = 1 << 14  # about 10 µs of work: below that, waking a thread costs more than it saves


@kernel
def _copy_rows(table, ids, width, out, start, stop):
    for row in range(start, stop):
        out[row * width : (row + 1) * width] = table[ids[row] * width : (ids[row] + 1) * width]


@kernel
def _widen_rows(table, ids, width, out, start, stop):
    for row in range(start, stop):
        source, target = ids[row] * width, row * width
        for i in range(width):
            out[target + i] = half_to_float(table[source + i])


@kernel
def _pick_ids(known, source, sampled, out, start, stop):
    for i in range(start, stop):
        out[i] = sampled[source[i]] if source[i] >= 0 else known[i]


@kernel
def _launch_copy_rows(board, tape, num_items, num_chunks, *arguments):
    run_job(board, tape, job(_copy_rows, arguments), num_items, num_chunks)


@kernel
def _launch_widen_rows(board, tape, num_items, num_chunks, *arguments):
    run_job(board, tape, job(_widen_rows, arguments), num_items, num_chunks)


@kernel
def _launch_pick_ids(board, tape, num_items, num_chunks, *arguments):
    run_job(board, tape, job(_pick_ids, arguments), num_items, num_chunks)


def embedding(ids: Tensor, table: Tensor) -> Tensor:
    """float32 [T, width] for ids int64 [T] and a table [rows, width] of float32 or float16. Ids are not checked."""
    num_tokens, width = ids.shape[0], table.shape[1]
    out = empty_tensor((num_tokens, width))
    launch, rows = _launch_copy_rows, table.detach().numpy().reshape(-1)
    if table.dtype == torch.float16:
        launch, rows = _launch_widen_rows, rows.view(np.uint16)
    threads.run(launch, (rows, ids.numpy(), width, flat(out)), num_tokens, min_items=_CHUNK_ELEMENTS // width)
    return out


def pick_ids(known: Tensor, source: Tensor, sampled: Tensor) -> Tensor:
    """sampled[source] where source >= 0, else known; all int64, known and source [T]."""
    out = empty((known.shape[0],), np.int64)
    threads.run(_launch_pick_ids, (known.numpy(), source.numpy(), sampled.numpy(), out), len(out), min_items=1 << 12)
    return torch.from_numpy(out)

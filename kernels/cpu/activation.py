"""Gated MLP activations on a CPU: act(gate) · up, with gate and up side by side in one row."""

import numpy as np
from torch import Tensor

from kernels.cpu import threads
from kernels.cpu.arrays import flat
from kernels.cpu.gates import GATES, activate
from kernels.cpu.jit import kernel
from kernels.cpu.packed import Gate
from kernels.cpu.parallel import job, run_job
from kernels.cpu.recording import empty_tensor
from kernels.cpu.simd import LANES, load, mul, store

_CHUNK_ELEMENTS = 1 << 14  # about 10 µs of work: below that, waking a thread costs more than it saves


@kernel
def _activate_rows(gate_up, width, kind, out, start, stop):
    whole = width // LANES * LANES
    tail = np.zeros(2 * LANES, np.float32)
    for row in range(start, stop):
        gate, up, target = 2 * row * width, (2 * row + 1) * width, row * width
        for i in range(0, whole, LANES):
            store(out, target + i, mul(activate(load(gate_up, gate + i), kind), load(gate_up, up + i)))
        if whole < width:
            rest = width - whole
            tail[:rest] = gate_up[gate + whole : gate + width]
            tail[LANES : LANES + rest] = gate_up[up + whole : up + width]
            store(tail, 0, mul(activate(load(tail, 0), kind), load(tail, LANES)))
            out[target + whole : target + width] = tail[:rest]


@kernel
def _launch_activate_rows(board, tape, num_items, num_chunks, *arguments):
    run_job(board, tape, job(_activate_rows, arguments), num_items, num_chunks)


def gated(gate_up: Tensor, gate: Gate) -> Tensor:
    """gate(left half) · right half for gate_up [num_tokens, 2 · width]."""
    num_tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = empty_tensor((num_tokens, width))
    arguments = (flat(gate_up), width, GATES[gate], flat(out))
    threads.run(_launch_activate_rows, arguments, num_tokens, min_items=_CHUNK_ELEMENTS // max(width, 1))
    return out


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) · up for gate_up [num_tokens, 2 · width], the gate first."""
    return gated(gate_up, "silu")


def gelu_and_mul(gate_up: Tensor, approximate: str) -> Tensor:
    """gelu(gate) · up for gate_up [num_tokens, 2 · width]; approximate is "tanh" or "none" (erf)."""
    return gated(gate_up, "gelu_tanh" if approximate == "tanh" else "gelu")

"""Weights in panels of 32 outputs, the columns that a product reads together, and what becomes of their sums.

A layer that gates has in each panel 16 gates and the 16 outputs that they gate: both are in cache when one is
multiplied with the other.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from kernels.cpu.gates import GATES, activate
from kernels.cpu.jit import kernel
from kernels.cpu.packed import Gate, Rows
from kernels.cpu.register_tile import PANEL
from kernels.cpu.simd import LANES, add, load, mul, splat, store

NO_GATE = -1  # where a kernel is told one of GATES
_ELEMENTS_AT_A_TIME = 1 << 18


def round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def num_panels(num_rows: int) -> int:
    """Of a weight of so many rows, gates among them or not."""
    return -(-num_rows // PANEL)


def kind_of(gate: Gate | None) -> int:
    return NO_GATE if gate is None else GATES[gate]


def slices(weight: Rows, gate: Gate | None = None) -> Iterator[tuple[slice, Tensor]]:
    """[N, K], some panels at a time: their numbers, and float32 [panels, 32, K] with zeros for outputs not there."""
    num_rows, depth = weight.shape
    step = max(1, _ELEMENTS_AT_A_TIME // (PANEL * depth))
    for first in range(0, num_panels(num_rows), step):
        numbers = slice(first, min(first + step, num_panels(num_rows)))
        if gate is None:
            yield numbers, _blocks(weight, numbers, 0, num_rows, PANEL)
        else:
            width = num_rows // 2
            yield numbers, torch.cat([_blocks(weight, numbers, half, half + width, LANES) for half in (0, width)], 1)


def _blocks(weight: Rows, numbers: slice, begin: int, end: int, size: int) -> Tensor:
    """Those of the blocks of `size` rows into which [begin, end) falls that have these numbers, the last filled up."""
    rows = weight[begin + size * numbers.start : min(begin + size * numbers.stop, end)].detach().float()
    missing = size * (numbers.stop - numbers.start) - rows.shape[0]
    return (pad(rows, (0, 0, 0, missing)) if missing else rows).reshape(-1, size, rows.shape[1])


def bias_of(bias: Tensor | None, gate: Gate | None) -> Tensor | None:
    """A layer's bias in the order of its panels."""
    if bias is None or gate is None:
        return bias
    return torch.cat([panels.reshape(-1) for _, panels in slices(bias[:, None], gate)])


def turned(panels: Tensor) -> Tensor:
    """[panels, 32, K] -> [panels, K, 32]"""
    return panels.permute(0, 2, 1)


@kernel
def write_panel(sums, panel, num_rows, width, bias, gate, out):
    """The outputs of a panel, in rows of `width`, from sums [num_rows, 32]: sums + bias, or gated."""
    if gate == NO_GATE:
        _write_sums(sums, panel, num_rows, width, bias, out)
    else:
        _write_gated(sums, panel, num_rows, width, bias, gate, out)


@kernel
def _write_sums(sums, panel, num_rows, width, bias, out):
    first = panel * PANEL
    here = min(PANEL, width - first)
    if here < PANEL:
        for row in range(num_rows):
            for i in range(here):
                added = bias[first + i] if bias.size else np.float32(0)
                out[row * width + first + i] = sums[row * PANEL + i] + added
        return
    for vector in range(0, PANEL, LANES):
        added = load(bias, first + vector) if bias.size else splat(np.float32(0))
        for row in range(num_rows):
            store(out, row * width + first + vector, add(load(sums, row * PANEL + vector), added))


@kernel
def _write_gated(sums, panel, num_rows, width, bias, gate, out):
    first, place = panel * LANES, panel * PANEL
    here = min(LANES, width - first)
    zero = splat(np.float32(0))
    gate_bias, gated_bias = (load(bias, place), load(bias, place + LANES)) if bias.size else (zero, zero)
    short = np.empty(LANES, np.float32)
    for row in range(num_rows):
        gates, gated = add(load(sums, row * PANEL), gate_bias), add(load(sums, row * PANEL + LANES), gated_bias)
        value = mul(activate(gates, gate), gated)
        if here == LANES:
            store(out, row * width + first, value)
        else:
            store(short, 0, value)
            out[row * width + first : (row + 1) * width] = short[:here]

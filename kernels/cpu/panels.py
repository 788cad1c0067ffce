"""Weights in panels of 32 outputs, the columns that a product reads together."""

from collections.abc import Iterator

import numpy as np
from torch import Tensor
from torch.nn.functional import pad

from kernels.cpu.jit import kernel
from kernels.cpu.packed import Rows
from kernels.cpu.register_tile import PANEL
from kernels.cpu.simd import LANES, add, load, splat, store

_ELEMENTS_AT_A_TIME = 1 << 18


def round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def slices(weight: Rows) -> Iterator[tuple[slice, Tensor]]:
    """[N, K], some panels at a time: their numbers, and float32 [panels, 32, K] with zeros for outputs not there."""
    num_outputs, depth = weight.shape
    num_panels = -(-num_outputs // PANEL)
    step = max(1, _ELEMENTS_AT_A_TIME // (PANEL * depth))
    for first in range(0, num_panels, step):
        numbers = slice(first, min(first + step, num_panels))
        rows = weight[numbers.start * PANEL : min(numbers.stop * PANEL, num_outputs)].detach().float()
        missing = -rows.shape[0] % PANEL
        yield numbers, (pad(rows, (0, 0, 0, missing)) if missing else rows).reshape(-1, PANEL, depth)


def turned(panels: Tensor) -> Tensor:
    """[panels, 32, K] -> [panels, K, 32]"""
    return panels.permute(0, 2, 1)


@kernel
def write_panel(sums, panel, num_rows, num_outputs, bias, out):
    """out[:, 32 · panel : …] = sums [num_rows, 32] + bias, for the outputs that there are."""
    first = panel * PANEL
    width = min(PANEL, num_outputs - first)
    if width < PANEL:
        for row in range(num_rows):
            for i in range(width):
                added = bias[first + i] if bias.size else np.float32(0)
                out[row * num_outputs + first + i] = sums[row * PANEL + i] + added
        return
    for vector in range(0, PANEL, LANES):
        added = load(bias, first + vector) if bias.size else splat(np.float32(0))
        for row in range(num_rows):
            store(out, row * num_outputs + first + vector, add(load(sums, row * PANEL + vector), added))

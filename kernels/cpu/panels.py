"""Weights in panels of 32 outputs, the columns that a product reads together."""

import numpy as np
from torch import Tensor
from torch.nn.functional import pad

from kernels.cpu.jit import kernel
from kernels.cpu.register_tile import PANEL
from kernels.cpu.simd import LANES, add, load, splat, store


def round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def panels_of(weight: Tensor) -> Tensor:
    """[N, K] -> [panels, 32, K], with zeros for outputs that are not there."""
    missing = -weight.shape[0] % PANEL
    return (pad(weight, (0, 0, 0, missing)) if missing else weight).view(-1, PANEL, weight.shape[1])


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

"""A linear layer with float32 weights, every sum one chain of multiply-adds.

weights   float32 [panels, K, 32]: a panel is 32 outputs, read from its first depth to its last
loops     panel (spread over threads) > block of the depth (stays in cache) > tile of rows (stays in registers)

torch's own product would not do: BLAS picks its tiles, and with them the bits of a row, by the number of rows.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels.cpu import threads
from kernels.cpu.arrays import flat, optional
from kernels.cpu.block_product import DEPTH, add_block
from kernels.cpu.jit import kernel
from kernels.cpu.large_pages import zeros
from kernels.cpu.packed import Gate, PackedLinear, Rows
from kernels.cpu.panels import bias_of, kind_of, num_panels, round_up, slices, turned, write_panel
from kernels.cpu.parallel import job, run_job
from kernels.cpu.recording import empty_tensor
from kernels.cpu.register_tile import PANEL


@kernel
def _multiply_panels(x, num_rows, weights, bias, out, shape, start, stop):
    """Panels [start, stop) of out [num_rows, N] = x [num_rows, K] @ weights + bias."""
    width, depth, gate = shape
    sums = np.empty(num_rows * PANEL, np.float32)
    for panel in range(start, stop):
        sums[:] = 0
        for first in range(0, depth, DEPTH):
            place = (panel * depth + first) * PANEL
            add_block(x, first, depth, num_rows, weights, place, min(DEPTH, depth - first), sums)
        write_panel(sums, panel, num_rows, width, bias, gate, out)


@kernel
def _launch_multiply_panels(board, tape, num_items, num_chunks, *arguments):
    run_job(board, tape, job(_multiply_panels, arguments), num_items, num_chunks)


class Float32Linear(PackedLinear):
    dtype = "float32"

    def __init__(self, weight: Rows, bias: Tensor | None, gate: Gate | None = None) -> None:
        super().__init__(weight, bias, gate)
        self._num_panels, self._gate = num_panels(weight.shape[0]), kind_of(gate)
        self._weights = zeros(self.weight_bytes(weight.shape[0], self.num_inputs) // 4, np.float32)
        packed = torch.from_numpy(self._weights).view(-1, self.num_inputs, PANEL)
        for numbers, panels in slices(weight, gate):
            packed[numbers] = turned(panels)
        self._bias = optional(bias_of(bias, gate))

    @staticmethod
    def weight_bytes(num_rows: int, num_inputs: int) -> int:
        return 4 * round_up(num_rows, PANEL) * num_inputs

    def __call__(self, x: Tensor) -> Tensor:
        num_rows = x.shape[0]
        out = empty_tensor((num_rows, self.num_outputs))
        arguments: tuple[Any, ...] = (
            flat(x.contiguous()), num_rows, self._weights, self._bias, flat(out),
            (self.num_outputs, self.num_inputs, self._gate),
        )  # fmt: skip
        threads.run(_launch_multiply_panels, arguments, self._num_panels)
        return out

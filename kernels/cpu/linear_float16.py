"""A linear layer with float16 weights: widened in registers, every sum one chain of float32 multiply-adds.

weights   uint16 [panels, K, 32], the bits of float16: a panel is 32 outputs, read from its first depth to its last
loops     panel (spread over threads) > block of the depth (stays in cache) > tile of rows (stays in registers)
"""


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
from kernels.cpu.simd import LANES, load_half, store

_WIDENED_ROWS = 96  # from which on a block is widened once for all tiles instead of in each


@kernel
def _multiply_panels(x, num_rows, weights, bias, out, shape, start, stop):
    """Panels [start, stop) of out [num_rows, N] = x [num_rows, K] @ weights + bias."""
    width, depth, gate = shape
    sums, widened = np.empty(num_rows * PANEL, np.float32), np.empty(DEPTH * PANEL, np.float32)
    for panel in range(start, stop):
        sums[:] = 0
        for first in range(0, depth, DEPTH):
            steps, place = min(DEPTH, depth - first), (panel * depth + first) * PANEL
            if num_rows < _WIDENED_ROWS:
                add_block(x, first, depth, num_rows, weights, place, steps, sums)
            else:
                for i in range(0, steps * PANEL, LANES):
                    store(widened, i, load_half(weights, place + i))
                add_block(x, first, depth, num_rows, widened, 0, steps, sums)
        write_panel(sums, panel, num_rows, width, bias, gate, out)


@kernel
def _launch_multiply_panels(board, tape, num_items, num_chunks, *arguments):
    run_job(board, tape, job(_multiply_panels, arguments), num_items, num_chunks)


class Float16Linear(PackedLinear):
    """Refuses weights beyond float16's range: saturating would serve another model without a word."""

    dtype = "float16"

    def __init__(self, weight: Rows, bias: Tensor | None, gate: Gate | None = None) -> None:
        super().__init__(weight, bias, gate)
        self._num_panels, self._gate = num_panels(weight.shape[0]), kind_of(gate)
        self._weights = zeros(self.weight_bytes(weight.shape[0], self.num_inputs) // 2, np.uint16)
        packed, limit = torch.from_numpy(self._weights.view(np.float16)), torch.finfo(torch.float16).max
        packed = packed.view(-1, self.num_inputs, PANEL)
        for numbers, panels in slices(weight, gate):
            low, high = map(float, panels.aminmax())
            if not (low >= -limit and high <= limit):
                raise ValueError(f"float16 weights reach ±{limit:.0f}, got {low} to {high}; float32 holds this weight")
            packed[numbers] = turned(panels)
        self._bias = optional(bias_of(bias, gate))

    @staticmethod
    def weight_bytes(num_rows: int, num_inputs: int) -> int:
        return 2 * round_up(num_rows, PANEL) * num_inputs

    def __call__(self, x: Tensor) -> Tensor:
        num_rows = x.shape[0]
        out = empty_tensor((num_rows, self.num_outputs))
        arguments = (
            flat(x.contiguous()), num_rows, self._weights, self._bias, flat(out),
            (self.num_outputs, self.num_inputs, self._gate),
        )  # fmt: skip
        threads.run(_launch_multiply_panels, arguments, self._num_panels)
        return out

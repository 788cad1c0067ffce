"""A linear layer with float16 weights: widened in registers, every sum one chain of float32 multiply-adds.

weights   uint16 [panels, K, 32], the bits of float16: a panel is 32 outputs, read from its first depth to its last
loops     panel (spread over threads) > block of the depth (stays in cache) > tile of rows (stays in registers)
"""

from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from torch import Tensor

from kernels.cpu import threads
from kernels.cpu.arrays import flat, optional
from kernels.cpu.jit import kernel
from kernels.cpu.large_pages import zeros
from kernels.cpu.packed import Gate, PackedLinear, Rows
from kernels.cpu.panels import bias_of, kind_of, num_panels, round_up, slices, turned, write_panel
from kernels.cpu.parallel import job, run_job
from kernels.cpu.recording import empty_tensor
from kernels.cpu.register_tile import (
    FLOATS,
    HALFS,
    PANEL,
    Addresses,
    add_product,
    for_tiles,
    offset,
    prefetch,
    run_depth,
)
from kernels.cpu.simd import LANES, load_half, store

_DEPTH = 256  # of a block: 16 KiB of weights
_AHEAD = 2048  # a page: the processor's own prefetching ends at each
_WIDENED_ROWS = 96  # from which on a block is widened once for all tiles instead of in each


@intrinsic
def _add_block(typing_context, x, x_at, x_stride, num_rows, weights, w_at, steps, sums):
    """sums [num_rows, 32] += x[x_at + row * x_stride + step] · weights[w_at + step * 32 :], over `steps` >= 1."""

    widened = weights.dtype == types.float32

    def codegen(context, builder, signature, args):
        _, x_at, x_stride, num_rows, _, w_at, steps, _ = args
        address = Addresses(context, builder, signature, args)

        def tile(first_row: Any, height: int, vectors: range) -> None:
            def sums_at(row: int, vector: int) -> Any:
                return address(7, offset(builder, first_row.type(vector * LANES + row * PANEL), (first_row, PANEL)))

            def weights_at(step: Any) -> list[Any]:
                places = [offset(builder, w_at, (step, PANEL), vector * LANES) for vector in vectors]
                if widened:
                    return [builder.load(address(4, place), align=4) for place in places]
                if height > 2:  # with fewer rows there is nothing to do but read
                    prefetch(builder, address(4, offset(builder, places[0], _AHEAD), ir.IntType(8)))
                return [builder.fpext(builder.load(address(4, place, HALFS), align=2), FLOATS) for place in places]

            starts_of_rows = [offset(builder, x_at, (first_row, x_stride), (x_stride, row)) for row in range(height)]
            starts = [[builder.load(sums_at(row, vector), align=4) for vector in vectors] for row in range(height)]
            grown = run_depth(
                builder, steps, starts, weights_at,
                lambda step, row: address.spread(0, offset(builder, starts_of_rows[row], step)), add_product,
            )  # fmt: skip
            for row, row_sums in enumerate(grown):
                for vector, value in zip(vectors, row_sums, strict=True):
                    builder.store(value, sums_at(row, vector), align=4)

        for_tiles(builder, num_rows, tile)
        return context.get_dummy_value()

    index = types.intp
    return types.void(x, index, index, index, weights, index, index, sums), codegen


@kernel
def _multiply_panels(x, num_rows, weights, bias, out, shape, start, stop):
    """Panels [start, stop) of out [num_rows, N] = x [num_rows, K] @ weights + bias."""
    width, depth, gate = shape
    sums, widened = np.empty(num_rows * PANEL, np.float32), np.empty(_DEPTH * PANEL, np.float32)
    for panel in range(start, stop):
        sums[:] = 0
        for first in range(0, depth, _DEPTH):
            steps, place = min(_DEPTH, depth - first), (panel * depth + first) * PANEL
            if num_rows < _WIDENED_ROWS:
                _add_block(x, first, depth, num_rows, weights, place, steps, sums)
            else:
                for i in range(0, steps * PANEL, LANES):
                    store(widened, i, load_half(weights, place + i))
                _add_block(x, first, depth, num_rows, widened, 0, steps, sums)
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

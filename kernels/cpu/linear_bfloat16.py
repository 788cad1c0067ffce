"""A linear layer with bfloat16 weights and bfloat16 activations, two products a lane, sums in float32.

x         rows are rounded to bfloat16 on their way in: a row's bits depend on the row alone
weights   uint16 [panels, K / 2, 32, 2], the bits of bfloat16: a panel is 32 outputs, read pair by pair
loops     panel (spread over threads) > tile of rows (stays in registers over the whole depth)
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from torch import Tensor

from kernels.cpu import threads
from kernels.cpu.arrays import flat, optional
from kernels.cpu.jit import kernel
from kernels.cpu.large_pages import zeros
from kernels.cpu.packed import Gate, PackedLinear, Rows
from kernels.cpu.pair_dot import BY_INSTRUCTION, X_DTYPE, add_pair_dot, pair_at
from kernels.cpu.panels import bias_of, kind_of, num_panels, round_up, slices, write_panel
from kernels.cpu.parallel import job, run_job
from kernels.cpu.recording import empty, empty_tensor
from kernels.cpu.register_tile import FLOATS, INDEX, INTS, PANEL, Addresses, for_tiles, offset, prefetch, run_depth
from kernels.cpu.simd import LANES, load, store_bfloat16, transpose

_AHEAD = 4096  # a page: the processor's own prefetching ends at each
_CHUNK_ELEMENTS = 1 << 15  # about 10 µs of work: below that, waking a thread costs more than it saves


@intrinsic
def _multiply_panel(typing_context, x, num_pairs, num_rows, weights, w_at, sums):
    """sums [num_rows, 32] = x · weights of a panel.

    x         [num_rows, num_pairs]: int32, two bfloat16 each, or pairs of float32, see `pair_dot`
    weights   uint16, the panel's from w_at
    """

    def codegen(context, builder, signature, args):
        _, num_pairs, num_rows, _, w_at, _ = args
        address = Addresses(context, builder, signature, args)

        def tile(first_row: Any, height: int, vectors: range) -> None:
            rows = [offset(builder, first_row, row) for row in range(height)]
            starts = [builder.mul(row, num_pairs) for row in rows]

            def weights_at(pair: Any) -> list[Any]:
                places = [offset(builder, w_at, (pair, 2 * PANEL), vector * 2 * LANES) for vector in vectors]
                for place in places:
                    prefetch(builder, address(3, offset(builder, place, _AHEAD // 2), ir.IntType(8)))
                return [builder.load(address(3, place, INTS), align=4) for place in places]

            products = run_depth(
                builder, num_pairs, [[ir.Constant(FLOATS, [0.0] * LANES)] * len(vectors) for _ in rows], weights_at,
                lambda pair: [
                    [pair_at(builder, address, 0, offset(builder, start, pair))] * len(vectors) for start in starts
                ],
                add_pair_dot,
            )  # fmt: skip
            for row, row_products in zip(rows, products, strict=True):
                for vector, product in zip(vectors, row_products, strict=True):
                    place = offset(builder, INDEX(vector * LANES), (row, PANEL))
                    builder.store(product, address(5, place), align=4)

        for_tiles(builder, num_rows, tile)
        return context.get_dummy_value()

    index = types.intp
    return types.void(x, index, index, weights, index, sums), codegen


@kernel
def _round_rows(x, depth, width, rounded, start, stop):
    """Rows [start, stop) of x [., depth] rounded to bfloat16 [., width], zeros behind them."""
    whole = depth - depth % LANES
    rest = np.zeros(LANES, np.float32)
    for row in range(start, stop):
        source, target = row * depth, row * width
        for i in range(0, whole, LANES):
            store_bfloat16(rounded, target + i, load(x, source + i))
        if whole < width:
            rest[: depth - whole] = x[source + whole : source + depth]
            store_bfloat16(rounded, target + whole, load(rest, 0))


@kernel
def _round_panels(panels, depth, width, pairs, start, stop):
    """Panels [start, stop) of the weights, from float32 [stop - start, 32, depth]; a pair is seen as a float32."""
    num_pairs = width // 2
    rounded, starts = np.empty(PANEL * width, np.uint16), np.arange(PANEL) * num_pairs
    rows = rounded.view(np.float32)
    for panel in range(start, stop):
        _round_rows(panels[(panel - start) * PANEL * depth :], depth, width, rounded, 0, PANEL)
        place, whole = panel * num_pairs * PANEL, num_pairs - num_pairs % LANES
        for first in range(0, PANEL, LANES):
            for pair in range(0, whole, LANES):
                transpose(rows, starts, first, pair, pairs, place + pair * PANEL + first, PANEL)
        for output in range(PANEL):
            for pair in range(whole, num_pairs):
                pairs[place + pair * PANEL + output] = rows[output * num_pairs + pair]


@kernel
def _launch_round_rows(board, tape, num_items, num_chunks, *arguments):
    run_job(board, tape, job(_round_rows, arguments), num_items, num_chunks)


@kernel
def _multiply_panels(x, num_rows, weights, bias, out, shape, start, stop):
    """Panels [start, stop) of out [num_rows, N] = x [num_rows, 2 · num_pairs] @ weights + bias."""
    width, num_pairs, gate = shape
    sums = np.empty(num_rows * PANEL, np.float32)
    for panel in range(start, stop):
        _multiply_panel(x, num_pairs, num_rows, weights, panel * num_pairs * 2 * PANEL, sums)
        write_panel(sums, panel, num_rows, width, bias, gate, out)


@kernel
def _launch_multiply_panels(board, tape, num_items, num_chunks, *arguments):
    run_job(board, tape, job(_multiply_panels, arguments), num_items, num_chunks)


class Bfloat16Linear(PackedLinear):
    """Rows of x are as wide as whole vectors once they are rounded."""

    dtype = "bfloat16"

    def __init__(self, weight: Rows, bias: Tensor | None, gate: Gate | None = None) -> None:
        super().__init__(weight, bias, gate)
        self._num_panels, self._gate = num_panels(weight.shape[0]), kind_of(gate)
        self._width = round_up(self.num_inputs, LANES)
        self._weights = zeros(self.weight_bytes(weight.shape[0], self.num_inputs) // 2, np.uint16)
        pairs = self._weights.view(np.float32)
        for numbers, panels in slices(weight, gate):
            _round_panels(flat(panels), self.num_inputs, self._width, pairs, numbers.start, numbers.stop)
        self._bias = optional(bias_of(bias, gate))

    @staticmethod
    def weight_bytes(num_rows: int, num_inputs: int) -> int:
        return 2 * round_up(num_rows, PANEL) * round_up(num_inputs, LANES)

    def __call__(self, x: Tensor) -> Tensor:
        num_rows = x.shape[0]
        rounded = empty((num_rows, self._width), X_DTYPE).reshape(-1)
        threads.run(
            _launch_round_rows, (flat(x.contiguous()), self.num_inputs, self._width, rounded), num_rows,
            min_items=_CHUNK_ELEMENTS // self._width,
        )  # fmt: skip
        out = empty_tensor((num_rows, self.num_outputs))
        arguments = (
            rounded.view(np.int32) if BY_INSTRUCTION else rounded, num_rows, self._weights, self._bias, flat(out),
            (self.num_outputs, self._width // 2, self._gate),
        )  # fmt: skip
        threads.run(_launch_multiply_panels, arguments, self._num_panels)
        return out

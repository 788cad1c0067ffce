"""The innermost loops of a matrix product on a CPU, emitted as LLVM: a tile of sums stays in registers.

    for rows in tiles of 12, 8, 4, 3, 2, 1:                     whatever is left takes the next smaller tile
        for step in range(steps):                              one after the other, so that a sum has one order
            for vector in panel:
                for row in tile:
                    sums[row, vector] += weights[step, vector] · x[step, row]      x[step, row] is the same in all lanes

A sum depends on its row, its column and the order of the steps alone: tiles of any height give the same bits.
"""

import itertools
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from kernels.cpu.byte_dot import call
from kernels.cpu.host import has
from kernels.cpu.simd import LANES, element_pointer, spread

PANEL = 2 * LANES  # outputs whose weights lie together
I32, INDEX = ir.IntType(32), ir.IntType(64)
FLOATS, INTS, HALFS = (ir.VectorType(element, LANES) for element in (ir.FloatType(), I32, ir.HalfType()))

# 32 registers hold 12 rows of a panel and its weights; 16 registers of half the width hold 4 rows of half a panel.
HEIGHTS, _VECTORS = ((12, 8, 4, 3, 2, 1), 2) if has("avx512f") else ((4, 2, 1), 1)


class Addresses:
    """Where elements of the arrays of one intrinsic's call lie."""

    def __init__(self, context: Any, builder: Any, signature: Any, args: Any) -> None:
        self._context, self._builder, self._types, self._args = context, builder, signature.args, args

    def __call__(self, argument: int, place: Any, element: Any = FLOATS) -> Any:
        array_type, array = self._types[argument], self._args[argument]
        return element_pointer(self._context, self._builder, array_type, array, place, element)

    def spread(self, argument: int, place: Any, lanes: Any = FLOATS) -> Any:
        """The number at `place` in every lane."""
        return spread(self._builder, self._builder.load(self(argument, place, lanes.element), align=4), lanes)

    def spread_rows(self, argument: int, starts: list[Any], step: Any, num_vectors: int) -> list[list[Any]]:
        """The float32 at `step` of each row that starts there, as `run_depth` takes them."""
        return [[self.spread(argument, offset(self._builder, start, step))] * num_vectors for start in starts]


def offset(builder: Any, base: Any, *terms: Any) -> Any:
    """base + the terms, which are numbers, values or pairs to multiply."""
    for term in terms:
        pair = term if isinstance(term, tuple) else (term,)
        factors = [INDEX(factor) if isinstance(factor, int) else factor for factor in pair]
        base = builder.add(base, factors[0] if len(factors) == 1 else builder.mul(*factors))
    return base


def add_product(builder: Any, sums: Any, weights: Any, x: Any) -> Any:
    """sums + weights · x in float32, rounded once."""
    return call(builder, f"llvm.fma.v{LANES}f32", sums.type, weights, x, sums)


def prefetch(builder: Any, pointer: Any) -> None:
    """Asks for the cache line at `pointer`, which may lie anywhere."""
    hints = [ir.Constant(I32, hint) for hint in (0, 3, 1)]             # for reading, into all caches, data
    function_type = ir.FunctionType(ir.VoidType(), [pointer.type, I32, I32, I32])
    builder.call(cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0"), [pointer, *hints])


def apart(builder: Any, pointer: Any) -> Any:
    """The same address, of which LLVM does not know that."""
    return builder.asm(ir.FunctionType(pointer.type, [pointer.type]), "", "=r,0", [pointer], side_effect=False)


def spread_words(builder: Any, pointer: Any, count: int, vectors: range, lanes: Any) -> list[list[Any]]:
    """The words at `pointer`, which are a tile's rows at one depth, each in every lane, for each of the vectors.

    Every other one is read once for each vector, by addresses of which LLVM does not know that they are equal: so it
    becomes an operand in memory of the instruction that takes it, and costs none of its own: a step of 12 rows is 39
    instructions instead of 53, with 24 products among them. Where a core's other thread is busy, that is what limits
    it: products alone lost nothing there. All of them in memory would be a read for each product.
    """
    pointer = builder.bitcast(pointer, lanes.element.as_pointer())
    twins = [apart(builder, pointer) if count > 1 else pointer for _ in vectors]

    def read(twin: Any, word: int) -> Any:
        return spread(builder, builder.load(builder.gep(twin, [INDEX(word)]), align=4), lanes)

    return [
        [read(twin, word) for twin in twins] if word % 2 else [read(twins[0], word)] * len(vectors)
        for word in range(count)
    ]


def for_tiles(
    builder: Any, num_rows: Any, emit: Callable[[Any, int, range], None], num_vectors: int = PANEL // LANES
) -> None:
    """Emits the tiles of a panel, or of fewer vectors: emit(first row, number of rows, the tile's vectors)."""
    row = cgutils.alloca_once_value(builder, ir.Constant(INDEX, 0))
    for height in HEIGHTS:
        test, body, after = (builder.append_basic_block(name) for name in ("rows", "tile", "rows.done"))
        builder.branch(test)
        builder.position_at_end(test)
        end = offset(builder, builder.load(row), height)
        builder.cbranch(builder.icmp_signed("<=", end, num_rows), body, after)
        builder.position_at_end(body)
        for first in range(0, num_vectors, _VECTORS):
            emit(builder.load(row), height, range(first, min(first + _VECTORS, num_vectors)))
        builder.store(end, row)
        builder.branch(test)
        builder.position_at_end(after)


def _as_it_is(module: Any) -> Any:
    """Marks a loop that is not to be unrolled: two steps at once would not find room in the registers."""
    disabled = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
    loop = ir.MDValue(module, [disabled], name=str(len(module.metadata)))
    loop.operands = (loop, disabled)  # how LLVM tells one loop from another
    return loop


def run_depth(
    builder: Any,
    steps: Any,                                        # at least 1
    starts: list[list[Any]],                           # of the sums, [rows][vectors]
    weights_at: Callable[[Any], list[Any]],            # step -> lanes of each vector
    x_at: Callable[[Any], list[list[Any]]],            # step -> the numbers, each in every lane, [rows][vectors]
    add: Callable[[Any, Any, Any, Any], Any],          # (builder, sums, weights, x) -> sums
) -> list[list[Any]]:  # fmt: skip
    """Emits the loop over the depth; returns the sums after it."""
    before, body, after = builder.block, builder.append_basic_block("depth"), builder.append_basic_block("depth.done")
    builder.branch(body)
    builder.position_at_end(body)
    step = builder.phi(INDEX)
    sums = [[builder.phi(start.type) for start in row] for row in starts]
    columns, numbers = weights_at(step), x_at(step)
    grown = [
        [add(builder, *three) for three in zip(row_sums, columns, row_numbers, strict=True)]
        for row_sums, row_numbers in zip(sums, numbers, strict=True)
    ]
    following = offset(builder, step, 1)
    branch = builder.cbranch(builder.icmp_signed("<", following, steps), body, after)
    branch.set_metadata("llvm.loop", _as_it_is(builder.module))
    phis, first, later = (
        [value, *itertools.chain.from_iterable(rows)]
        for value, rows in ((step, sums), (INDEX(0), starts), (following, grown))
    )
    for phi, start, grow in zip(phis, first, later, strict=True):
        phi.add_incoming(start, before)
        phi.add_incoming(grow, body)
    builder.position_at_end(after)
    return grown

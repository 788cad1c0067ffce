"""Figures: what one compiled launch costs, as kept in the cache and in the snapshot."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kernels.aot import machine_code
from kernels.aot.launches import Launch
from kernels.aot.machine_code import LIMITS, Instruction, Resources

SCHEDULERS = 4  # of a multiprocessor; each issues one warp-instruction a cycle


@dataclass(frozen=True, slots=True)
class Figures:
    registers: int
    stack_bytes: int
    spills: int
    shared_bytes: int
    instructions: int
    loop_instructions: int  # of the unmasked main loop; 0: the kernel has no loop of matrix products
    loads: Mapping[str, int]  # bytes a lane -> loads from global memory, whole kernel
    loop_loads: Mapping[str, int]
    matrix: Mapping[str, int]  # kind -> matrix instructions, whole kernel
    blocks: int  # programs that fit a multiprocessor at once
    per_token_head: float | None = None  # decode: warp-instructions per token of one KV head
    issue_over_mma: float | None = None  # extend, varlen: cycles to issue a tile's instructions over its matrix cycles

    @property
    def wide_load_share(self) -> float:
        """The part of the main loop's bytes that arrives 16 at a time."""
        loaded = {int(width): int(width) * count for width, count in self.loop_loads.items()}
        return loaded.get(16, 0) / max(1, sum(loaded.values()))


def read(launch: Launch, code: list[Instruction], resources: Resources, shared_bytes: int) -> Figures:
    """The figures of a compiled launch, from its parsed machine code."""
    loop = machine_code.main_loop(code)
    warps = launch.options["num_warps"]
    limits = LIMITS[launch.arch]
    figures = Figures(
        registers=resources.registers,
        stack_bytes=resources.stack_bytes,
        spills=resources.spills,
        shared_bytes=shared_bytes,
        instructions=len(code),
        loop_instructions=len(loop),
        loads=_text_keys(machine_code.load_widths(code)),
        loop_loads=_text_keys(machine_code.load_widths(loop)),
        matrix=machine_code.matrix_instructions(code),
        blocks=machine_code.blocks_per_multiprocessor(limits, resources.registers, shared_bytes, warps),
    )
    if not loop:
        return figures
    sizes: Mapping[str, Any] = launch.constants
    if launch.kind == "decode":
        return replace(figures, per_token_head=round(len(loop) * warps / sizes["TILE"], 2))
    if launch.kind in ("extend", "varlen") and limits.flop_per_cycle:
        # Q · Kᵀ and weights · V: 2 FLOP each per row, key and channel; a head is as wide as its padded parts.
        flop = 4 * sizes["ROWS"] * sizes["TILE"] * (sizes["D0"] + sizes["D1"])
        issue = len(loop) * warps / SCHEDULERS
        return replace(figures, issue_over_mma=round(issue / (flop / limits.flop_per_cycle), 3))
    return figures


def _text_keys(counts: Mapping[int, int]) -> dict[str, int]:
    return {str(width): count for width, count in counts.items()}  # as JSON will give them back

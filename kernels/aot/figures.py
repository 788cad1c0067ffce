"""Figures: what one compiled launch costs, as kept in the cache and in the snapshot."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kernels.aot import control_flow, machine_code
from kernels.aot.launches import Launch
from kernels.aot.machine_code import LIMITS, Instruction, Resources

ELEMENT_BYTES = {"*fp8e4nv": 1, "*fp16": 2, "*bf16": 2, "*fp32": 4}
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
    matrix: Mapping[str, int]  # kind -> matrix instructions, whole kernel
    blocks: int  # programs that fit a multiprocessor at once
    # Of attention on NVIDIA, for one tile of keys in the unmasked main loop:
    wide_share: float | None = None  # bytes that 16-byte loads bring, over the bytes of the K and V tiles
    per_token_head: float | None = None  # decode: warp-instructions per token of one KV head
    issue_over_mma: float | None = None  # extend, varlen: cycles to issue its instructions over its matrix cycles


def read(launch: Launch, code: list[Instruction], resources: Resources, shared_bytes: int) -> Figures:
    """The figures of a compiled launch, from its parsed machine code."""
    loop = control_flow.main_loop(code)
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
        matrix=machine_code.matrix_instructions(code),
        blocks=machine_code.blocks_per_multiprocessor(limits, resources.registers, shared_bytes, warps),
    )
    # AMD's text mixes scalar instructions, which have an issue port of their own, with the others: no ratio is derived.
    if not loop or not launch.is_attention or not limits.flop_per_cycle:
        return figures
    sizes: Mapping[str, Any] = launch.constants
    channels = sizes["D0"] + sizes["D1"]  # a head is as wide as its padded parts
    tile_bytes = 2 * sizes["TILE"] * channels * ELEMENT_BYTES[launch.kv_type]
    wide_bytes = 16 * machine_code.load_widths(loop).get(16, 0) * warps * limits.lanes
    figures = replace(figures, wide_share=round(wide_bytes / tile_bytes, 3))
    if launch.kind == "decode":
        return replace(figures, per_token_head=round(len(loop) * warps / sizes["TILE"], 2))
    flop = 4 * sizes["ROWS"] * sizes["TILE"] * channels  # Q · Kᵀ and weights · V: 2 FLOP each a row, key and channel
    issue = len(loop) * warps / SCHEDULERS
    return replace(figures, issue_over_mma=round(issue / (flop / limits.flop_per_cycle), 3))


def _text_keys(counts: Mapping[int, int]) -> dict[str, int]:
    return {str(width): count for width, count in counts.items()}  # as JSON will give them back

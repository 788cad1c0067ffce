"""Figures read from a kernel's machine code: registers, spills, loads, matrix products.

NVIDIA's text is cuobjdump's (`-res-usage`, `-sass`), AMD's the compiler's own assembly. Both become one list of
instructions; control_flow.py finds the loops in it.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_SASS = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([A-Z]\w*(?:\.\w+)*)([^;]*);", re.M)
_AMDGCN = re.compile(r"^(?:(\.LBB\w+):|\s+((?:s|v|ds|global|buffer|flat|scratch)_\w+)([^;\n]*))", re.M)
_MATRIX = re.compile(r"HGMMA|QGMMA|HMMA|QMMA|UTC[HQ]MMA|v_mfma")
_AMD_BYTES = {"dword": 4, "dwordx2": 8, "dwordx3": 12, "dwordx4": 16, "ushort": 2, "ubyte": 1, "short": 2}


@dataclass(frozen=True, slots=True)
class Instruction:
    opcode: str
    jumps_to: int | None = None  # index of the instruction that a branch leads to
    ends: bool = False  # nothing goes on to the next one


@dataclass(frozen=True, slots=True)
class Resources:
    """What a program takes of a multiprocessor."""

    registers: int
    stack_bytes: int
    spills: int  # instructions (NVIDIA) or registers (AMD) that go through local memory


@dataclass(frozen=True, slots=True)
class Limits:
    """What a multiprocessor has."""

    shared_bytes: int  # of one program
    total_shared_bytes: int
    registers: int  # 32-bit, over all lanes
    register_unit: int  # a warp takes whole multiples of this
    warps: int
    lanes: int
    flop_per_cycle: int  # of dense 16-bit matrix products; 0: no ratio is derived
    reserved_bytes: int = 1024  # of shared memory, per program


LIMITS = {
    "sm_80": Limits(163 << 10, 164 << 10, 65536, 256, 64, 32, 2048),
    "sm_90": Limits(227 << 10, 228 << 10, 65536, 256, 64, 32, 4096),
    "sm_100": Limits(227 << 10, 228 << 10, 65536, 256, 64, 32, 8192),
    "gfx942": Limits(64 << 10, 64 << 10, 131072, 512, 32, 64, 0, reserved_bytes=0),
}


def parse_sass(text: str) -> list[Instruction]:
    found = [(int(m[1], 16), m[2], m[3], m[4]) for m in _SASS.finditer(text)]
    index = {address: i for i, (address, *_) in enumerate(found)}
    code = []
    for _, guard, opcode, operands in found:
        target = re.search(r"0x([0-9a-f]+)\s*$", operands) if opcode.startswith("BRA") else None
        conditional = guard or re.search(r"\bU?P[\dT]", operands)
        ends = opcode.split(".")[0] in ("BRA", "EXIT", "RET", "BRX") and not conditional
        code.append(Instruction(opcode, index.get(int(target[1], 16)) if target else None, ends))
    return code


def parse_amdgcn(text: str) -> list[Instruction]:
    labels: dict[str, int] = {}
    found: list[tuple[str, str]] = []
    for label, opcode, rest in _AMDGCN.findall(text):
        if label:
            labels[label] = len(found)
        else:
            found.append((opcode, rest.strip()))
    ends = ("s_branch", "s_endpgm")
    return [Instruction(op, labels.get(rest) if "branch" in op else None, op in ends) for op, rest in found]


def nvidia_resources(usage: str, code: Sequence[Instruction]) -> Resources:
    match = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    if match is None:
        raise ValueError(f"cuobjdump reported no resource usage: {usage[-500:]!r}")
    spills = sum(instruction.opcode.split(".")[0] in ("LDL", "STL") for instruction in code)
    return Resources(int(match[1]), int(match[2]), spills)


def amd_resources(text: str) -> Resources:
    def field(name: str) -> int:
        match = re.search(rf"\.{name}:\s+(\d+)", text)
        if match is None:
            raise ValueError(f"the assembly's metadata has no {name}")
        return int(match[1])

    return Resources(field("vgpr_count"), field("private_segment_fixed_size"), field("vgpr_spill_count"))


def load_bytes(opcode: str) -> int:
    """Bytes a lane receives from global memory by this instruction; 0 where it is no such load."""
    base, *modifiers = opcode.split(".")
    if base in ("LDG", "LDGSTS"):
        widths = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}
        return next((widths[modifier] for modifier in modifiers if modifier in widths), 4)
    if base.startswith("UTMALDG"):
        return 16
    match = re.match(r"(?:global|buffer|flat)_load_(?:lds_)?([a-z0-9]+)", base)
    return _AMD_BYTES.get(match[1], 0) if match else 0


def load_widths(code: Sequence[Instruction]) -> dict[int, int]:
    """Bytes a lane -> number of such loads."""
    widths = Counter(width for instruction in code if (width := load_bytes(instruction.opcode)))
    return dict(sorted(widths.items(), reverse=True))


def matrix_instructions(code: Sequence[Instruction]) -> dict[str, int]:
    """Kind of matrix product -> number of instructions."""
    kinds = (_MATRIX.match(instruction.opcode) for instruction in code)
    return dict(sorted(Counter(kind[0].removeprefix("v_").upper() for kind in kinds if kind).items()))


def blocks_per_multiprocessor(limits: Limits, registers: int, shared_bytes: int, warps: int) -> int:
    """Programs that fit at once: by registers, shared memory and warps."""
    unit = limits.register_unit
    per_warp = max(unit, -(-registers * limits.lanes // unit) * unit)
    by_shared = limits.total_shared_bytes // max(1, shared_bytes + limits.reserved_bytes)
    return min(limits.registers // (per_warp * warps), by_shared, limits.warps // warps)

"""Tiles, warps and stages of every kernel: one table, each line with its reason.

Chosen by architecture, head_dim and width of an element, never by the batch: a result must not depend on which
requests share a step. Every line compiles without a spill but where it says so, and loads 16-bit K
and V in 16-byte pieces.
"""

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """How paged attention is tiled.

    Of the stages one holds the page ids, half of the others (rounded down) hold K and V: 3 stages keep one tile in
    flight, 5 keep two.
    """

    extend_rows: int  # query rows (tokens x heads of a group) of one extend program
    extend_tile: int  # keys of one loop iteration
    extend_warps: int
    extend_stages: int
    decode_tile: int
    decode_stages: int
    decode_warps: int = 4  # more would halve each warp's slice of a 16-row product
    split_tokens: int = 512  # keys of one decode split: enough to hide a program's start, 32 programs at 16k tokens
    max_splits: int = 32  # longer contexts take whole multiples of split_tokens
    short_query: int = 4  # queries up to this long are decoded: one token, or a few to verify
    backend: tuple[tuple[str, int], ...] = ()  # compiler options of one vendor


_AMD = (("waves_per_eu", 2), ("matrix_instr_nonkdim", 16))

# architecture -> ((widest head_dim, tiles), ...), for 16-bit queries
_ATTENTION: dict[str, tuple[tuple[int, AttentionConfig], ...]] = {
    "sm_90": (
        (128, AttentionConfig(128, 64, 8, 3, 64, 5)),  # two warp groups of HGMMA; 3 decode programs a multiprocessor
        (192, AttentionConfig(128, 64, 8, 3, 32, 5)),  # decode: tile 64 would leave room for 2 programs only
        (256, AttentionConfig(128, 32, 8, 3, 32, 5)),  # extend: tile 64 spills
    ),
    "sm_100": (
        (192, AttentionConfig(128, 64, 8, 3, 64, 5)),  # accumulators live in tensor memory
        (256, AttentionConfig(128, 32, 8, 3, 32, 5)),  # tile 64 would not fit shared memory beside the queries
    ),
    "sm_80": (
        (64, AttentionConfig(128, 32, 8, 3, 64, 5)),  # scores and accumulators share the registers: tile 32
        (128, AttentionConfig(64, 32, 4, 3, 64, 5)),  # 128 rows spill on small pages, and load 96 as 64 + 8-byte bits
        (192, AttentionConfig(32, 32, 4, 3, 32, 5)),  # 64 rows spill
        (256, AttentionConfig(64, 32, 8, 3, 32, 5)),  # 128 rows spill
    ),
    "gfx942": (
        # 64 lanes a wave: 4 waves hold 64 rows. ALiBi at head_dim 128 on pages below 64 may spill one register.
        (128, AttentionConfig(64, 64, 4, 2, 64, 2, backend=_AMD)),
        (192, AttentionConfig(64, 32, 4, 2, 64, 2, backend=_AMD)),  # extend: tile 64 spills
        (256, AttentionConfig(64, 32, 8, 2, 32, 2, backend=_AMD)),  # tile 64 spills, and so do 4 waves with softcap
    ),
    "interpreter": ((256, AttentionConfig(16, 16, 4, 1, 16, 1, split_tokens=32, max_splits=4)),),  # cheap to interpret
}


def architecture(device: torch.device) -> str:
    """The line of the tables that a device reads: sm_80, sm_90, sm_100, gfx942, or interpreter for CPU tensors."""
    if device.type != "cuda":
        return "interpreter"
    if torch.version.hip is not None:
        return "gfx942"
    major, _ = torch.cuda.get_device_capability(device)
    return {8: "sm_80", 9: "sm_90"}.get(major, "sm_100")


def attention(arch: str, head_dim: int, dtype: torch.dtype) -> AttentionConfig:
    """The tiles for queries of this dtype."""
    fitting = [config for widest, config in _ATTENTION[arch] if head_dim <= widest]
    if not fitting:
        raise ValueError(f"head_dim must be at most {_ATTENTION[arch][-1][0]}, got {head_dim}")
    config = fitting[0]
    if dtype == torch.float32 and arch != "interpreter":  # exact products on plain cores: for tests, not for speed
        return replace(config, extend_rows=32, extend_tile=16, extend_warps=4, decode_tile=16, decode_stages=3)
    return config


ACTIVATION_BLOCK = 1024  # channels: 8 a thread at 4 warps, one 16-byte load each of gate and up
ROPE_WARPS = 2  # with rope_heads: 16 bytes a thread for each half of a rotation at 16-bit elements
COPY_BYTES = 8192  # of a block, at 4 warps: four independent 16-byte loads a thread from each of K and V
PENALTY_IDS = 1024  # listed tokens, or bits of a mask, of one iteration: 4 independent gathers a thread
PENALTY_WARPS = 8
SAMPLE_BLOCK = 4096  # logits: 16 a thread, four independent 16-byte loads in flight
SAMPLE_WARPS = 8


def rope_heads(head_dim: int) -> int:
    """Heads in one program's tile: about 1024 channels."""
    return max(1, 1024 >> (head_dim - 1).bit_length())


def row_warps(block: int) -> int:
    """Warps for a row held whole: 16 elements a thread, which is two 16-byte loads at 16-bit elements."""
    return min(16, max(1, block // 512))

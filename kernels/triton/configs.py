"""Tiles, warps and stages of every kernel: one table, each line with its reason.

Chosen by architecture, head_dim and width of an element, never by the batch: a result must not depend on which
requests share a step. Every line compiles without a spill but where it says so, and loads 16-bit K
and V in 16-byte pieces. `python -m kernels.aot` shows what a change of a line costs.
"""

import enum
from dataclasses import dataclass, replace

import torch


class Scores(enum.IntEnum):
    """What attention does to its scores, by the registers it takes."""

    PLAIN = 0
    WINDOWED = 1  # a third loop, over the window's edge
    TRANSFORMED = 2  # softcap or ALiBi

    @classmethod
    def of(cls, window: int, softcap: float, alibi: bool) -> "Scores":
        return cls.TRANSFORMED if softcap > 0 or alibi else cls.WINDOWED if window > 0 else cls.PLAIN


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    """How paged attention is tiled.

    Stages count page ids, K and V: 2 and 3 keep one tile in flight, 5 keep two. With 2 the ids pass through registers,
    asked for at the head of the iteration that needs them at its end.

    Registers are a thread's, at most, on NVIDIA; 0 leaves them to the compiler, which would rather spill a few than
    have one program less on a multiprocessor.
    """

    extend_rows: int  # query rows (tokens x heads of a group) of one extend program
    extend_tile: int  # keys of one loop iteration
    extend_warps: int
    extend_stages: int
    extend_registers: int
    decode_tile: int
    decode_stages: int
    decode_registers: int
    decode_warps: int = 4  # more would halve each warp's slice of a 16-row product
    split_tokens: int = 512  # keys of one decode split: enough to hide a program's start, 32 programs at 16k tokens
    max_splits: int = 32  # longer contexts take whole multiples of split_tokens
    short_query: int = 4  # queries up to this long are decoded: one token, or a few to verify
    backend: tuple[tuple[str, int], ...] = ()  # compiler options of one vendor


_AMD = (("waves_per_eu", 2), ("matrix_instr_nonkdim", 16))

# For 16-bit queries, the first line that fits: architecture -> ((widest head_dim, most done to the scores, tiles), ...)
_ATTENTION: dict[str, tuple[tuple[int, Scores, AttentionConfig], ...]] = {
    "sm_90": (  # two warp groups of HGMMA; 3 decode programs a multiprocessor
        # 128 keys would halve what a tile costs beside its scores, but leave room for one program instead of two
        (64, Scores.TRANSFORMED, AttentionConfig(128, 64, 8, 3, 0, 64, 5, 0)),
        # one program either way; a third stage spills on small pages, and so does a softcap with ALiBi
        (96, Scores.WINDOWED, AttentionConfig(128, 128, 8, 2, 255, 64, 5, 168)),
        (128, Scores.TRANSFORMED, AttentionConfig(128, 64, 8, 3, 255, 64, 5, 168)),  # 128 keys spill
        (192, Scores.TRANSFORMED, AttentionConfig(128, 64, 8, 2, 255, 32, 5, 168)),  # decode: 64 leaves 2 programs
        (256, Scores.TRANSFORMED, AttentionConfig(128, 32, 8, 3, 255, 32, 5, 0)),  # extend: 64 keys spill
    ),
    "sm_100": (  # accumulators live in tensor memory; a tile's fixed cost is high: 128 keys where they fit
        (64, Scores.WINDOWED, AttentionConfig(128, 128, 8, 2, 0, 64, 5, 0)),
        (96, Scores.TRANSFORMED, AttentionConfig(128, 64, 8, 3, 255, 64, 5, 168)),  # 128 keys spill
        (128, Scores.PLAIN, AttentionConfig(128, 128, 8, 2, 255, 64, 5, 168)),
        (128, Scores.TRANSFORMED, AttentionConfig(128, 64, 8, 3, 255, 64, 5, 168)),
        (192, Scores.TRANSFORMED, AttentionConfig(128, 64, 8, 3, 255, 64, 5, 255)),
        (256, Scores.TRANSFORMED, AttentionConfig(128, 32, 8, 3, 255, 32, 5, 0)),  # 64 do not fit beside the queries
    ),
    "sm_80": (  # scores and accumulators share the registers: 32 keys; 2 decode programs from head_dim 128 on
        (64, Scores.TRANSFORMED, AttentionConfig(128, 32, 8, 2, 0, 64, 5, 0)),
        (96, Scores.TRANSFORMED, AttentionConfig(64, 32, 4, 2, 255, 64, 5, 168)),  # 8 warps load 96 as 64 + 8-byte bits
        (128, Scores.PLAIN, AttentionConfig(128, 32, 8, 3, 255, 64, 5, 255)),
        (128, Scores.TRANSFORMED, AttentionConfig(64, 32, 4, 2, 255, 64, 5, 255)),  # 128 rows and a window spill
        (192, Scores.TRANSFORMED, AttentionConfig(32, 32, 4, 3, 255, 32, 5, 255)),  # 64 rows spill
        (256, Scores.TRANSFORMED, AttentionConfig(64, 32, 8, 3, 255, 32, 5, 255)),  # 128 rows spill
    ),
    "gfx942": (  # 64 lanes a wave: 4 waves hold 64 rows
        # ALiBi at head_dim 128 on pages below 64 may spill one register
        (128, Scores.TRANSFORMED, AttentionConfig(64, 64, 4, 2, 0, 64, 2, 0, backend=_AMD)),
        (192, Scores.TRANSFORMED, AttentionConfig(64, 32, 4, 2, 0, 64, 2, 0, backend=_AMD)),  # extend: 64 keys spill
        # 64 keys spill, and so do 4 waves with a softcap
        (256, Scores.TRANSFORMED, AttentionConfig(64, 32, 8, 2, 0, 32, 2, 0, backend=_AMD)),
    ),
    "interpreter": (  # cheap to interpret
        (256, Scores.TRANSFORMED, AttentionConfig(16, 16, 4, 1, 0, 16, 1, 0, split_tokens=32, max_splits=4)),
    ),
}


def architecture(device: torch.device) -> str:
    """The line of the tables that a device reads: sm_80, sm_90, sm_100, gfx942, or interpreter for CPU tensors."""
    if device.type != "cuda":
        return "interpreter"
    if torch.version.hip is not None:
        return "gfx942"
    major, _ = torch.cuda.get_device_capability(device)
    return {8: "sm_80", 9: "sm_90"}.get(major, "sm_100")


def attention(arch: str, head_dim: int, dtype: torch.dtype, scores: Scores = Scores.TRANSFORMED) -> AttentionConfig:
    """The tiles for queries of this dtype."""
    lines = _ATTENTION[arch]
    config = next((config for widest, most, config in lines if head_dim <= widest and scores <= most), None)
    if config is None:
        raise ValueError(f"head_dim must be at most {lines[-1][0]}, got {head_dim}")
    if dtype == torch.float32 and arch != "interpreter":  # exact products on plain cores: for tests, not for speed
        most = 0 if arch == "gfx942" else 255
        return replace(
            config, extend_rows=32, extend_tile=16, extend_warps=4, extend_stages=3, extend_registers=most,
            decode_tile=16, decode_stages=3, decode_registers=most,
        )  # fmt: skip
    return config


ACTIVATION_BLOCK = 1024  # channels: 8 a thread at 4 warps, one 16-byte load each of gate and up
ROPE_WARPS = 2  # with rope_heads: 16 bytes a thread for each half of a rotation at 16-bit elements
COPY_BYTES = 8192  # of a block, at 4 warps: four independent 16-byte loads a thread from each of K and V
PENALTY_IDS = 1024  # listed tokens, or bits of a mask, of one iteration: 4 independent gathers a thread
PENALTY_WARPS = 8
SAMPLE_BLOCK = 4096  # logits: 8 a thread, two independent 16-byte loads in flight
SAMPLE_WARPS = 16  # 8 hold as many bytes in flight, and may spill


def at_most(registers: int) -> dict[str, int]:
    """The compiler option for a config's registers; not known to AMD's compiler, whose lines say 0."""
    return {"maxnreg": registers} if registers else {}


def rope_heads(head_dim: int) -> int:
    """Heads in one program's tile: about 1024 channels."""
    return max(1, 1024 >> (head_dim - 1).bit_length())


def row_warps(block: int) -> int:
    """Warps for a row held whole: 16 elements a thread, which is two 16-byte loads at 16-bit elements."""
    return min(16, max(1, block // 512))

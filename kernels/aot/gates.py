"""What a compiled launch must keep to, and the exceptions: each named, reasoned, and with a bound of its own.

Bounds hold on every triton that we take; what one of them does better, the snapshot keeps.
"""

from collections.abc import Callable
from dataclasses import dataclass

from kernels.aot.figures import Figures
from kernels.aot.launches import Launch
from kernels.aot.machine_code import LIMITS

SPILLS = "no spills"
SHARED = "shared memory"
MATRIX = "matrix instructions"
MAIN_LOOP = "main loop"
WIDE_LOADS = "16-byte loads of K and V"
PER_TOKEN = "warp-instructions per KV token-head"
ISSUE = "issue cycles over MMA cycles"

MIN_WIDE_SHARE = 1.0  # of the bytes of a K and a V tile
MAX_PER_TOKEN = 25.0  # of some 115 that fit the time its bytes take on an H200 (bfloat16, head_dim 128)
MAX_ISSUE = 0.85
BLACKWELL = 2.0  # its tensor cores do twice Hopper's work a cycle, behind the same issue rate


@dataclass(frozen=True, slots=True)
class Exemption:
    """A bound for the launches that `applies` names, in place of a gate's own."""

    gate: str
    bound: float
    reason: str
    applies: Callable[[Launch], bool]

    def bound_of(self, launch: Launch) -> float:
        return self.bound * (BLACKWELL if self.gate == ISSUE and launch.arch == "sm_100" else 1.0)


def _fp8(launch: Launch) -> bool:
    return launch.is_attention and launch.kv_type == "*fp8e4nv"


EXEMPTIONS = (
    Exemption(PER_TOKEN, 50, "head_dim above 128: up to twice the bytes, and time, a token-head; a tile of 64 would "
              "leave room for fewer programs", lambda launch: launch.constants["D"] > 128),
    Exemption(PER_TOKEN, 34, "8-bit V passes through registers byte by byte: the product wants pairs of keys", _fp8),
    Exemption(PER_TOKEN, 38, "a window's decode masks every tile, of a context no longer than the window: a loop of "
              "whole tiles alone spills", lambda launch: launch.flag("WINDOW")),
    Exemption(PER_TOKEN, 26, "ALiBi adds a distance to every score: just above the bound on triton 3.6 only",
              lambda launch: launch.flag("ALIBI")),
    Exemption(PER_TOKEN, 26, "32 query heads on one KV head: twice the rows for the same bytes",
              lambda launch: launch.constants["GROUP"] > 16),
    Exemption(ISSUE, 1.9, "softcap on heads below 128: the two reasons below at once; no model has it",
              lambda launch: launch.flag("SOFTCAP") and launch.constants["D"] < 128),
    Exemption(ISSUE, 1.35, "softcap's tanh is two more exponential-unit operations a score",
              lambda launch: launch.flag("SOFTCAP")),
    Exemption(ISSUE, 1.35, "head_dim below 128: the softmax costs the same a score, the products half; at 64 the "
              "exponentials alone take the MMA's time", lambda launch: launch.constants["D"] < 128),
    Exemption(ISSUE, 1.15, "64 rows at head_dim 128 with a window or ALiBi, 32 or 64 beyond: more of them spill",
              lambda launch: launch.arch == "sm_80"),
    Exemption(ISSUE, 0.92, "ALiBi adds a distance to every score: just above the bound on triton 3.6 only",
              lambda launch: launch.flag("ALIBI")),
    Exemption(ISSUE, 0.9, "Blackwell: this bound and those above count double; it takes warp specialisation to feed "
              "its tensor cores", lambda launch: launch.arch == "sm_100"),
    Exemption(WIDE_LOADS, 0.5, "8-bit K comes in 8-byte pieces, as the product's layout wants it", _fp8),
)  # fmt: skip


def failures(launch: Launch, figures: Figures) -> list[str]:
    """What the launch does not keep to: gate, what was found, what is wanted."""
    found = []
    if figures.stack_bytes or figures.spills:
        found.append(f"{SPILLS}: {figures.stack_bytes} bytes of stack, {figures.spills} spilled")
    shared_limit = LIMITS[launch.arch].shared_bytes
    if figures.shared_bytes > shared_limit:
        found.append(f"{SHARED}: {figures.shared_bytes} bytes, there are {shared_limit}")
    if _is_judged_attention(launch):
        wanted = _matrix_wanted(launch)
        if set(figures.matrix) != {wanted}:
            found.append(f"{MATRIX}: {', '.join(figures.matrix) or 'none'}, wanted {wanted}")
        elif figures.wide_share is None and launch.arch != "gfx942":
            found.append(f"{MAIN_LOOP}: none was found, so that nothing of it can be judged")
    for gate, value, bound in _readings(launch, figures):
        exempt = exemption(gate, launch)
        allowed = exempt.bound_of(launch) if exempt else bound
        if not _keeps(gate, value, bound) and not _keeps(gate, value, allowed):
            found.append(f"{gate}: {value:.2f}, the bound is {allowed}")
    return found


def exemptions_used(launch: Launch, figures: Figures) -> list[Exemption]:
    """Those that this launch would fail without."""
    missed = [gate for gate, value, bound in _readings(launch, figures) if not _keeps(gate, value, bound)]
    return [exempt for gate in missed if (exempt := exemption(gate, launch))]


def exemption(gate: str, launch: Launch) -> Exemption | None:
    """The first that names this launch: they are listed from the widest to the narrowest."""
    return next((entry for entry in EXEMPTIONS if entry.gate == gate and entry.applies(launch)), None)


def _is_judged_attention(launch: Launch) -> bool:
    """float32 queries are for tests: exact products on plain cores, whatever that costs."""
    return launch.is_attention and launch.signature["query"] != "*fp32"


def _matrix_wanted(launch: Launch) -> str:
    """The fastest product of the architecture, which wants 64 rows."""
    if launch.arch == "gfx942":
        return "MFMA"
    by_warp_group = {"sm_90": "HGMMA", "sm_100": "UTCHMMA"} if launch.constants["ROWS"] >= 64 else {}
    return by_warp_group.get(launch.arch, "HMMA")


def _readings(launch: Launch, figures: Figures) -> list[tuple[str, float, float]]:
    """(gate, figure, bound) of each numeric gate that this launch has a figure for."""
    if not _is_judged_attention(launch):
        return []
    readings = (
        (WIDE_LOADS, figures.wide_share, MIN_WIDE_SHARE),
        (PER_TOKEN, figures.per_token_head, MAX_PER_TOKEN),
        (ISSUE, figures.issue_over_mma, MAX_ISSUE),
    )
    return [(gate, value, bound) for gate, value, bound in readings if value is not None]


def _keeps(gate: str, value: float, bound: float) -> bool:
    return value >= bound if gate == WIDE_LOADS else value <= bound

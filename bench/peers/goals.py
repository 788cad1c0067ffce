"""What we hold ourselves to against each peer, and whether a run reached it: ratios of one run, no absolute times."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from bench.goals import Goal
from bench.peers.lineup import OUR_DTYPES
from bench.peers.turns import label_of
from bench.systems import Measurement


class Pair(NamedTuple):
    """A system and what it is held against, on the workload of that label."""

    system: str
    against: str
    workload: str


Ratios = Mapping[Pair, tuple[float, ...]]  # of output tokens/s, one a repeat

MEMORY_FLOOR = "memory floor"              # `against` of the goal that no peer sets
_LLAMA = ("llama_cpp_q8_0_16", "llama_cpp_q8_0_48", "llama_cpp_q4_k_m_16", "llama_cpp_q4_k_m_48")


def bounds_at(bursts: Sequence[str]) -> dict[Pair, float]:
    """The least ratio wanted of each pair; those for every burst at the bursts given.

    Ours in process, as the peers are, and over HTTP too; weights of 16 bits are held to the same in both their forms.
    """
    ours = [(f"{form}_{dtype}", dtype == "int8") for form in ("ours_engine", "ours_http") for dtype in OUR_DTYPES]
    bounds = {}
    for system, is_int8 in ours:
        for cap in (128, 384):
            bounds[Pair(system, "transformers_static", f"burst {cap}")] = 10.0 if is_int8 else 6.0
        bounds[Pair(system, "transformers_continuous", "burst 384")] = 4.0
        for burst in bursts:
            for peer in ("vllm_cpu_float32", *_LLAMA):
                bounds[Pair(system, peer, burst)] = 2.5 if is_int8 else 1.5
        if is_int8:
            bounds[Pair(system, "llama_cpp_q8_0_16", "single")] = 1.0
            bounds[Pair(system, MEMORY_FLOOR, "single")] = 0.85
    return bounds | {Pair(f"ours_http_{d}", f"ours_engine_{d}", burst): 0.95 for burst in bursts for d in OUR_DTYPES}


def goals_at(bursts: Sequence[str], ratios: Ratios) -> dict[Pair, Goal]:
    """All goals: the median of the repeats is the value."""
    return {
        pair: Goal(
            f"{pair.system} / {pair.against}, {pair.workload}",
            statistics.median(ratios[pair]) if ratios.get(pair) else None, bound, "x", at_least=True,
        )
        for pair, bound in bounds_at(bursts).items()
    }  # fmt: skip


def paired(measurements: Iterable[Measurement]) -> dict[Pair, tuple[float, ...]]:
    """Ratios of every system to every other, repeat by repeat; a run with a failed request is in none of them."""
    speeds = {
        (label_of(m.workload), m.repeat, m.system): m.summary.output_tokens_per_s
        for m in measurements
        if not m.summary.num_failed and m.summary.output_tokens_per_s > 0
    }
    found: dict[Pair, list[float]] = {}
    for (workload, repeat, system), speed in speeds.items():
        for (other_workload, other_repeat, against), base in speeds.items():
            if (other_workload, other_repeat) == (workload, repeat) and against != system:
                found.setdefault(Pair(system, against, workload), []).append(speed / base)
    return {pair: tuple(of_repeats) for pair, of_repeats in found.items()}


def cut(ratio: float) -> str:
    """A ratio with two decimals, never rounded up: what is shown is reached."""
    return f"{math.floor(ratio * 100 + 1e-9) / 100:.2f}"

"""What we hold ourselves to against each peer, and whether a run reached it: ratios of one run, no absolute times."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench.peers.lineup import OUR_DTYPES
from bench.peers.turns import label_of
from bench.systems import Measurement

Paired = Mapping[tuple[str, str, str], tuple[float, ...]]        # (system, against, workload) -> ratio of each repeat


@dataclass(frozen=True, slots=True)
class Goal:
    """Output tokens/s of `system` over those of `against` are to be at least `wanted`."""

    system: str
    against: str
    workload: str                          # its label
    wanted: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal and what was measured; without a ratio there is no verdict."""

    goal: Goal
    of_repeats: tuple[float, ...]

    @property
    def median(self) -> float | None:
        return statistics.median(self.of_repeats) if self.of_repeats else None

    @property
    def is_reached(self) -> bool | None:
        return None if self.median is None else self.median >= self.goal.wanted


MEMORY_FLOOR = "memory floor"              # `against` of the goal that no peer sets
_LLAMA = ("llama_cpp_q8_0_16", "llama_cpp_q8_0_48", "llama_cpp_q4_k_m_16", "llama_cpp_q4_k_m_48")


def goals_at(bursts: Sequence[str]) -> list[Goal]:
    """All goals, those for every burst at the bursts given: ours in process, as the peers are, and over HTTP too.

    Weights of 16 bits are held to the same ratios in both of their forms.
    """
    ours = [(f"{form}_{dtype}", dtype == "int8") for form in ("ours_engine", "ours_http") for dtype in OUR_DTYPES]
    goals = []
    for system, is_int8 in ours:
        goals += [Goal(system, "transformers_static", f"burst {cap}", 10.0 if is_int8 else 6.0) for cap in (128, 384)]
        goals.append(Goal(system, "transformers_continuous", "burst 384", 4.0))
        peers = ("vllm_cpu_float32", *_LLAMA)
        goals += [Goal(system, peer, burst, 2.5 if is_int8 else 1.5) for burst in bursts for peer in peers]
        if is_int8:
            goals += [Goal(system, "llama_cpp_q8_0_16", "single", 1.0), Goal(system, MEMORY_FLOOR, "single", 0.85)]
    return goals + [Goal(f"ours_http_{d}", f"ours_engine_{d}", burst, 0.95) for burst in bursts for d in OUR_DTYPES]


def paired(measurements: Iterable[Measurement]) -> Paired:
    """Ratios of every system to every other, repeat by repeat; a run with a failed request is in none of them."""
    speeds = {
        (label_of(m.workload), m.repeat, m.system): m.summary.output_tokens_per_s
        for m in measurements
        if not m.summary.num_failed and m.summary.output_tokens_per_s > 0
    }
    found: dict[tuple[str, str, str], list[float]] = {}
    for (workload, repeat, system), speed in speeds.items():
        for (other_workload, other_repeat, against), base in speeds.items():
            if (other_workload, other_repeat) == (workload, repeat) and against != system:
                found.setdefault((system, against, workload), []).append(speed / base)
    return {key: tuple(of_repeats) for key, of_repeats in found.items()}


def floor_shares(measurements: Iterable[Measurement], system: str, floor_s: float | None) -> tuple[float, ...]:
    """Of single streams: the time that memory takes for a step's weights, as a share of the time per token."""
    if floor_s is None:
        return ()
    return tuple(
        floor_s * 1000 / m.summary.tpot_ms.p50
        for m in measurements
        if m.system == system and m.workload.name == "single" and not m.summary.num_failed and m.summary.tpot_ms
    )


def verdicts(bursts: Sequence[str], ratios: Paired, floor: Mapping[str, Sequence[float]]) -> list[Verdict]:
    """Each goal with what was measured; `floor`: system -> shares of the memory floor."""
    return [
        Verdict(goal, tuple(floor.get(goal.system, ())))
        if goal.against == MEMORY_FLOOR
        else Verdict(goal, ratios.get((goal.system, goal.against, goal.workload), ()))
        for goal in goals_at(bursts)
    ]


def cut(ratio: float) -> str:
    """A ratio with two decimals, never rounded up: what is shown is reached."""
    return f"{math.floor(ratio * 100 + 1e-9) / 100:.2f}"

"""Policies ranked for a user's own traffic, by simulation; and the YAML of the best."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import yaml

from bench.metrics import Objective, Summary
from bench.policies.runs import Case, PolicyRun
from bench.policies.simulated import SimulatedTarget
from bench.workloads import Workload
from engine.errors import ConfigError
from engine.scheduling.policies import policy_names


@dataclass(frozen=True, slots=True)
class Goal:
    """What is to be best. `score` is in `unit`; higher is better unless `lower_is_better`."""

    score: Callable[[Summary], float]
    unit: str
    lower_is_better: bool = False

    def key(self, run: PolicyRun) -> tuple[int, float]:
        """Runs that served every request come before all others."""
        score = self.score(run.summary)
        return run.summary.num_failed, score if self.lower_is_better else -score


GOALS: Mapping[str, Goal] = MappingProxyType({
    "throughput": Goal(lambda summary: summary.output_tokens_per_s, "output tokens/s"),
    "p99_ttft": Goal(lambda s: s.ttft_ms.p99 if s.ttft_ms else float("inf"), "ms p99 TTFT", lower_is_better=True),
    "goodput": Goal(lambda summary: summary.goodput_requests_per_s, "good requests/s"),
})

# Beside each policy's defaults, the settings that trade what users trade: step size, batch size, reservation.
_SETTINGS: Mapping[str, Sequence[Mapping[str, Any]]] = MappingProxyType({
    "static": ({"batch_size": 4}, {"batch_size": 16}, {"batch_size": 64}),
    "static_impatient": ({"batch_size": 4}, {"batch_size": 16}, {"batch_size": 64}),
    "packed_static": ({"batch_size": 4}, {"batch_size": 16}, {"batch_size": 64}),
    "turbo": ({"batch_size": 16},),
    "tgi": ({"max_waiting_tokens": 7}, {"waiting_served_ratio": 0.3}),
    "ray_serve_2023": ({"max_waiting_tokens": 7},),
    "vllm_v0": ({"max_num_batched_tokens": 8192},),
    "chunked": ({"max_num_batched_tokens": 512}, {"max_num_batched_tokens": 2048}),
    "splitfuse": ({"token_budget": 256}, {"token_budget": 2048}),
    "lightllm": ({"chunked_prefill_size": 1024},),
    "trtllm_no_evict": ({"enable_chunked_context": True},),
    "trtllm_max_utilization": ({"enable_chunked_context": True},),
    "sglang": ({"chunked_prefill_size": 2048},),
    "fair": ({"max_num_batched_tokens": 2048},),
})


_CLOSE = 0.01                                  # scores this near the best are equal: a simulator tells no finer


@dataclass(frozen=True, slots=True)
class Ranking:
    runs: tuple[PolicyRun, ...]                # best first
    refused: tuple[tuple[Case, str], ...]      # cases that cannot run there, and why

    def equals(self, goal: Goal) -> list[PolicyRun]:
        """The best, and those too close to it to tell apart."""
        best = self.runs[0]
        margin = _CLOSE * abs(goal.score(best.summary))
        return [
            run for run in self.runs
            if run.summary.num_failed == best.summary.num_failed
            and abs(goal.score(run.summary) - goal.score(best.summary)) <= margin
        ]  # fmt: skip

    def recommended(self, goal: Goal) -> PolicyRun:
        """Of the equally good the one with the shortest TPOT at the 99th percentile; of those again the first."""
        return min(self.equals(goal), key=lambda run: run.summary.tpot_ms.p99 if run.summary.tpot_ms else 0.0)


def candidates(only: Sequence[str] = ()) -> list[Case]:
    """Each policy with its defaults and with a few other settings."""
    found = []
    for policy in only or policy_names():
        found.append(Case(policy))
        for settings in _SETTINGS.get(policy, ()):
            found.append(Case(policy, settings, ", ".join(f"{key} {value}" for key, value in settings.items())))
    return found


def rank(
    target: SimulatedTarget, workload: Workload, cases: Sequence[Case], goal: Goal, objective: Objective,
    on_done: Callable[[], object] = lambda: None,
) -> Ranking:  # fmt: skip
    """Simulates every case. Equal scores keep the order of `cases`: the simplest setting of the first policy."""
    runs, refused = [], []
    for case in cases:
        try:
            runs.append(target.run(case, workload, objective))
        except ConfigError as error:
            refused.append((case, str(error)))
        on_done()
    return Ranking(tuple(sorted(runs, key=goal.key)), tuple(refused))


def ranking_text(ranking: Ranking, goal: Goal, *, top: int) -> str:
    """One line a case, the best first, then the YAML of the recommended one."""
    lines = [f"{'':>3} {'policy':<54}{goal.unit:>18}{'out tok/s':>11}{'TTFT p99 ms':>13}{'TPOT p99 ms':>13}  failed"]
    for place, run in enumerate(ranking.runs[:top], start=1):
        s = run.summary
        ttft = f"{s.ttft_ms.p99:,.0f}" if s.ttft_ms else "n/a"
        tpot = f"{s.tpot_ms.p99:,.1f}" if s.tpot_ms else "n/a"
        lines.append(
            f"{place:>3} {run.case.label:<54}{goal.score(s):>18,.2f}{s.output_tokens_per_s:>11,.1f}{ttft:>13}{tpot:>13}"
            f"{s.num_failed:>8}"
        )
    lines += [f"    {case.label} cannot run: {why}" for case, why in ranking.refused]
    if ranking.runs:
        chosen = ranking.recommended(goal)
        equals = f"{len(ranking.equals(goal))} are within {_CLOSE:.0%} of the best"
        best = f"of these {chosen.case.label} has the shortest TPOT p99"
        lines += ["", f"{equals}; {best}. For the YAML, under args:", "", yaml_of(chosen.case).rstrip()]
    return "\n".join(lines)


def yaml_of(case: Case) -> str:
    """The `scheduler` section that runs this case."""
    return yaml.safe_dump({"scheduler": {"policy": case.policy, **case.parameters}}, sort_keys=False)

"""One policy over one workload: what ran, and what came of it. The same figures from the engine and the simulator."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from bench.metrics import Summary
from engine.request import Request
from engine.scheduling.plan import StepPlan

_SAMPLES = 250                 # points of the occupancy curve that a run keeps


@dataclass(frozen=True, slots=True)
class Case:
    """A policy with its parameters; `label` tells it from the same policy with others."""

    policy: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    variant: str = ""

    @property
    def label(self) -> str:
        return f"{self.policy} ({self.variant})" if self.variant else self.policy


@dataclass(frozen=True, slots=True)
class Occupancy:
    """A stretch of consecutive steps: rows of the model's products, mean a step, by what they were for."""

    first_step: int
    begun_s: float
    prefill: float
    decode: float
    idle: float


@dataclass(frozen=True, slots=True)
class StepFigures:
    """What the steps of a run computed, and what the KV pool held meanwhile."""

    num_steps: int
    num_preemptions: int
    prefill_rows: int                          # recomputed ones too
    decode_rows: int
    idle_rows: int                             # padding and seats: computed and discarded
    mean_running: float                        # requests with tokens in the cache, over the run's time
    mean_batch: float                          # of those, in the step; the others wait for it to end
    kv_usage: float                            # of the pool, held by requests; over the run's time
    kv_waste: float                            # of that, without the token of a live request in it
    block_size: int
    occupancy: tuple[Occupancy, ...]

    @property
    def paused_share(self) -> float:
        """Of the time that requests are in the cache, the share in which others are computed and they are not."""
        return max(0.0, 1 - self.mean_batch / max(self.mean_running, 1e-12))

    @property
    def discarded_share(self) -> float:
        """Of the rows of decodes and of idle seats, those discarded."""
        return self.idle_rows / max(1, self.decode_rows + self.idle_rows)


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """One measurement."""

    case: Case
    workload: str                              # burst or poisson
    cap: int
    rate: float | None                         # requests/s; None: all at once
    repeat: int
    summary: Summary
    steps: StepFigures
    e2el_s: tuple[float, ...]                  # each request's, in the workload's order
    ttft_s: tuple[float, ...]

    def to_json(self, *, occupancy: bool, latencies: bool) -> dict[str, Any]:
        """Without the long parts, except those asked for; the occupancy as columns."""
        values = asdict(replace(self, steps=replace(self.steps, occupancy=()))) | {"label": self.case.label}
        if occupancy:
            names = [field.name for field in fields(Occupancy)]
            values["steps"]["occupancy"] = {name: [getattr(o, name) for o in self.steps.occupancy] for name in names}
        if not latencies:
            del values["e2el_s"], values["ttft_s"]
        return values


class StepCounter:
    """A StepObserver that adds up what steps computed, and what a pool holds once it is told which to `watch`."""

    def __init__(self) -> None:
        self._used_blocks: Callable[[], int] = lambda: 0
        self._num_blocks = self._block_size = 1
        self._num_prompt_tokens: dict[str, int] = {}
        self._in_cache: dict[str, int] = {}              # live request -> its tokens in the cache
        self._steps: list[tuple[float, int, int, int]] = []    # (begun_s, prefill, decode, idle rows)
        self._num_preemptions = 0
        self._ended_s = self._busy_s = self._running_s = self._batch_s = self._held_s = self._filled_s = 0.0

    def watch(self, used_blocks: Callable[[], int], *, num_blocks: int, block_size: int) -> None:
        """`used_blocks` tells how many of the pool's blocks requests hold at the moment."""
        self._used_blocks, self._num_blocks, self._block_size = used_blocks, num_blocks, block_size

    def on_step(self, plan: StepPlan, sampled: Mapping[str, int], begun_s: float, ended_s: float) -> None:
        for request_id, (generation, _) in plan.new.items():
            self._num_prompt_tokens[request_id] = len(generation.prompt_token_ids)
        self._num_preemptions += len(plan.preempted)
        for request_id in plan.preempted:
            self._in_cache.pop(request_id, None)
        decode = dropped = 0
        for request_id, num_tokens in plan.num_scheduled_tokens.items():
            num_prompt_tokens = self._num_prompt_tokens.get(request_id)
            if num_prompt_tokens is None:                # ended while this step ran
                dropped += num_tokens
                continue
            start = plan.start[request_id]
            self._in_cache[request_id] = start + num_tokens
            decode += num_tokens == 1 and request_id in sampled and start >= num_prompt_tokens
        idle = dropped + sum(plan.padding.values())
        self._steps.append((begun_s, plan.num_tokens - decode - dropped, decode, idle))
        duration_s = ended_s - max(begun_s, self._ended_s)    # overlapped steps share no second
        self._ended_s = ended_s
        self._busy_s += duration_s
        self._running_s += duration_s * len(self._in_cache)
        self._batch_s += duration_s * len(plan.num_scheduled_tokens)
        self._held_s += duration_s * self._used_blocks()
        self._filled_s += duration_s * sum(self._in_cache.values())

    def on_finish(self, request: Request, now_s: float) -> None:
        self._num_prompt_tokens.pop(request.request_id, None)
        self._in_cache.pop(request.request_id, None)

    def close(self) -> None:
        pass

    def figures(self) -> StepFigures:
        held_s = max(self._held_s, 1e-12)
        return StepFigures(
            num_steps=len(self._steps),
            num_preemptions=self._num_preemptions,
            prefill_rows=sum(step[1] for step in self._steps),
            decode_rows=sum(step[2] for step in self._steps),
            idle_rows=sum(step[3] for step in self._steps),
            mean_running=self._running_s / max(self._busy_s, 1e-12),
            mean_batch=self._batch_s / max(self._busy_s, 1e-12),
            kv_usage=held_s / (max(self._busy_s, 1e-12) * self._num_blocks),
            kv_waste=1 - self._filled_s / (held_s * self._block_size),
            block_size=self._block_size,
            occupancy=_occupancy(self._steps),
        )


def _occupancy(steps: Sequence[tuple[float, int, int, int]]) -> tuple[Occupancy, ...]:
    stretch = max(1, -(-len(steps) // _SAMPLES))
    found = []
    for first in range(0, len(steps), stretch):
        part = steps[first : first + stretch]
        prefill, decode, idle = (sum(step[kind] for step in part) / len(part) for kind in (1, 2, 3))
        found.append(Occupancy(first, round(part[0][0], 3), round(prefill, 2), round(decode, 2), round(idle, 2)))
    return tuple(found)

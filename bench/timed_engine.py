"""The real engine in this process, every step timed: what a simulation is calibrated with and held against."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.calibration import TimedStep
from bench.prepared import build_prepared_core
from bench.workloads import Workload
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.device import resolve_device
from engine.model.capacity import free_memory_bytes
from engine.model.description import describe_model
from engine.model.hub import resolve
from engine.model.loader import load_described
from engine.request import GenerationRequest, Request
from engine.sampling.params import SamplingParams
from engine.scheduling.plan import StepPlan
from engine.simulation.composition import StepRows, step_rows
from engine.text.tokenizer import load_tokenizer


@dataclass(frozen=True, slots=True)
class TimedRun:
    steps: tuple[TimedStep, ...]
    num_output_tokens: int
    duration_s: float                              # from the start to the last end

    @property
    def output_tokens_per_s(self) -> float:
        return self.num_output_tokens / self.duration_s


class TimedEngine:
    """A model on this machine, loaded once; an engine around it for each run. No prefix is shared between requests."""

    def __init__(self, model: str, device: str, *, num_threads: int | None = None, cpu_time: bool = False) -> None:
        """With `cpu_time` there is one thread and a second is one of its work: a busy machine's other work is left out.

        Raises ConfigError.
        """
        num_threads = 1 if cpu_time else num_threads
        self.model = model
        self.timing = {"clock": "cpu" if cpu_time else "wall", "num_threads": num_threads}
        self._clock = time.process_time if cpu_time else time.perf_counter
        self._settings = {
            "model": model, "device": device, "num_threads": num_threads, "kv_cache": {"prefix_caching": False},
        }  # fmt: skip
        config = self._config({})
        self.device = resolve_device(config)
        self.memory_bytes = free_memory_bytes(str(self.device))
        self.description = describe_model(resolve(model), config, str(self.device))
        tokenizer = load_tokenizer(self.description.resolved.path)
        self.vocabulary = tuple(sorted(set(range(tokenizer.vocab_size)) - tokenizer.special_token_ids))
        self._loaded = load_described(
            self.description, num_valid_tokens=tokenizer.vocab_size, tokenizer_eos_token_ids=tokenizer.eos_token_ids
        )

    def run(self, scheduler: Mapping[str, Any], workload: Workload) -> TimedRun:
        keeper = _PlanKeeper()
        core = build_prepared_core(self._config(scheduler), model=self._loaded, observer=keeper)
        stats = core.stats()
        keeper.block_size = stats.kv_capacity_tokens // stats.kv_blocks_total
        run = _timed_run(core, keeper, workload, self._clock)
        core.close()
        return run

    def _config(self, scheduler: Mapping[str, Any]) -> EngineConfig:
        return EngineConfig.model_validate({**self._settings, "scheduler": dict(scheduler)})


class _PlanKeeper:
    """A StepObserver that keeps what the last step was made of."""

    block_size = 1

    def __init__(self) -> None:
        self.last: StepRows | None = None

    def on_step(self, plan: StepPlan, sampled: Mapping[str, int], begun_s: float, ended_s: float) -> None:
        rows = step_rows(plan, self.block_size)
        self.last = rows._replace(single_starts=tuple(rows.single_starts))    # a view would keep the plan alive

    def on_finish(self, request: Request, now_s: float) -> None:
        pass

    def close(self) -> None:
        pass


def _timed_run(
    core: EngineCore, keeper: _PlanKeeper, workload: Workload, clock: Callable[[], float]
) -> TimedRun:
    """A step lasts from its planning to its last output. Users of a closed loop send when they have been answered."""
    chains = {str(chain[0].index): deque(chain) for chain in workload.chains}
    waiting = deque(sorted((chain.popleft() for chain in chains.values()), key=lambda request: request.arrival_s))
    follow_ups = {request_id: chain for request_id, chain in chains.items() if chain}
    steps, num_output_tokens = [], 0
    start_s = clock()
    while waiting or core.has_work:
        now_s = clock() - start_s
        if not core.has_work and waiting[0].arrival_s > now_s:
            start_s -= waiting[0].arrival_s - now_s            # what would be idle time is skipped
            continue
        while waiting and waiting[0].arrival_s <= now_s:
            request = waiting.popleft()
            sampling = SamplingParams(request.output_len, temperature=0.0, ignore_eos=True)
            core.add_request(GenerationRequest(str(request.index), request.prompt_token_ids, sampling))
        keeper.last = None
        begun_s = clock()
        outputs = core.step()
        duration_s = clock() - begun_s
        if keeper.last is not None:
            steps.append(TimedStep(keeper.last, duration_s))
        for output in outputs:
            num_output_tokens += len(output.token_ids)
            chain = follow_ups.pop(output.request_id, None) if output.is_finished else None
            if chain:
                waiting.appendleft(chain.popleft())
                follow_ups[str(waiting[0].index)] = chain
    return TimedRun(tuple(steps), num_output_tokens, clock() - start_s)

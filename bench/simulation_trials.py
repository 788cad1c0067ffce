"""Workloads that a measured device is fitted to, and others that it is held against."""

import statistics
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bench.calibration import fit, relative_errors, with_best_floor
from bench.result_file import stamped
from bench.timed_engine import TimedEngine
from bench.workloads import Burst, Draw, Poisson, Single, Workload, WorkloadRequest, WorkloadSpec, build_workload
from engine.simulation.build import plan_simulation
from engine.simulation.cost import num_dense_weights
from engine.simulation.engine import SimulatedEngine
from engine.simulation.measured import MeasuredDevice, Products, RowCount, features
from engine.simulation.records import Arrival, RequestRecord
from engine.simulation.replay import ReplaySummary, replay

SCHEMA = "conveyor-simulation/1"


@dataclass(frozen=True, slots=True)
class Trial:
    """A workload and the scheduler that runs it, for the real engine and the simulated one alike."""

    name: str
    spec: WorkloadSpec
    scheduler: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Waves(WorkloadSpec):
    """Bursts of equal prompts, one after the other's end, whose outputs end one by one.

    Each wave passes through all batch sizes, with another number of keys a row: what rows cost and what keys cost
    can be told apart.
    """

    name: ClassVar[str] = "waves"
    waves: tuple[tuple[int, int], ...]             # (requests, prompt length)
    steps_between_ends: int
    pause_s: float = 1e4                           # longer than any wave; skipped, not slept

    def requests(self, draw: Draw) -> list[WorkloadRequest]:
        found: list[WorkloadRequest] = []
        for wave, (count, prompt_len) in enumerate(self.waves):
            for place in range(count):
                output_len = (place + 1) * self.steps_between_ends
                found.append(
                    WorkloadRequest(len(found), draw.prompt(prompt_len), output_len, wave * self.pause_s)
                )
        return found


# A machine that others share is faster in one second than in the next: each runs for some ten seconds.
CALIBRATION = Trial(
    "calibration", Waves(((60, 30), (10, 420), (6, 120), (24, 100), (6, 420), (40, 50)), 4), {"policy": "chunked"}
)
TRIALS = (
    Trial("burst, all at once", Burst(60, 48, 48, 128), {"policy": "chunked"}),
    Trial("8 seats, short prompts", Burst(48, 32, 48, 128), {"policy": "chunked", "max_num_seqs": 8}),
    Trial("long prompts", Burst(12, 500, 48, 128), {"policy": "chunked"}),
    Trial("small chunks", Burst(12, 250, 48, 128), {"policy": "chunked", "max_num_batched_tokens": 96}),
    Trial("poisson, 2 a second", Poisson(24, 64, 48, 128, rate=2.0), {"policy": "chunked"}),
    Trial("single stream", Single(4, 48, 96), {"policy": "chunked"}),
)


def workload_of(trial: Trial, engine: TimedEngine, seed: int) -> Workload:
    return build_workload(trial.spec, engine.vocabulary, seed)


def calibrate(engine: TimedEngine, seed: int) -> MeasuredDevice:
    """The device as one workload shows it."""
    workload = workload_of(CALIBRATION, engine, seed)
    run = engine.run(CALIBRATION.scheduler, workload)
    spec = engine.description.spec
    head_weights = spec.vocab_size * spec.embedding_width
    products = with_best_floor(run.steps, Products(num_dense_weights(spec), head_weights, RowCount()))
    device = MeasuredDevice(
        name=f"measured {engine.device.type}",
        model=engine.description.resolved.name,
        dtype=engine.description.dtypes.weights,
        memory_bytes=engine.memory_bytes,
        products=products,
        coefficients=fit(run.steps, lambda rows: features(rows, products)),
        source={},
    )
    errors = relative_errors(run.steps, device.step_s)
    source = {
        **stamped(SCHEMA),
        **engine.timing,
        "workload": {"name": workload.name, "seed": workload.seed, "parameters": dict(workload.parameters)},
        "scheduler": CALIBRATION.scheduler,
        "steps": [
            (s.rows.num_entries, s.rows.num_rows, s.rows.num_sampled, s.rows.num_keys, s.rows.num_query_keys,
             round(1e3 * s.duration_s, 3))
            for s in run.steps
        ],  # entries, rows, sampled, keys, pairs of a row and a key, ms
        "output_tokens_per_s": run.output_tokens_per_s,
        "relative_error_of_step_times": {"median": float(np.median(errors)), "p90": float(np.percentile(errors, 90))},
    }
    return replace(device, source=source)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One workload on the real engine and in simulation."""

    name: str
    num_steps: int
    median_step_ms: float                      # measured
    step_error: float                          # median of |predicted - measured| / measured, step by step
    measured_tokens_per_s: float               # output tokens, the whole run
    simulated_tokens_per_s: float

    @property
    def throughput_error(self) -> float:
        return self.simulated_tokens_per_s / self.measured_tokens_per_s - 1

    def __str__(self) -> str:
        return (
            f"{self.name:<26}{self.num_steps:>7}{self.median_step_ms:>10.1f}{self.step_error:>10.1%}"
            f"{self.measured_tokens_per_s:>12.2f}{self.simulated_tokens_per_s:>12.2f}{self.throughput_error:>+10.1%}"
        )


HEADER = f"{'workload':<26}{'steps':>7}{'step ms':>10}{'error':>10}{'tokens/s':>12}{'simulated':>12}{'error':>10}"


def validate(engine: TimedEngine, path: Path, seed: int, *, only: str = "") -> list[Verdict]:
    """Predicts each trial with `only` in its name, runs it, and prints how the two compare."""
    print(f"median step time and its median error; output tokens/s of the whole run and its error\n{HEADER}")
    verdicts = []
    for trial in TRIALS:
        if only not in trial.name:
            continue
        workload = workload_of(trial, engine, seed + 1)        # not the calibration's draws
        plan = plan_simulation(trial.scheduler, model=engine.model, device=f"measured:{path}")
        predicted = replay_workload(plan.build(), workload)
        run = engine.run(trial.scheduler, workload)
        assert isinstance(plan.cost, MeasuredDevice)
        verdict = Verdict(
            name=trial.name,
            num_steps=len(run.steps),
            median_step_ms=1e3 * statistics.median(step.duration_s for step in run.steps),
            step_error=float(np.median(relative_errors(run.steps, plan.cost.step_s))),
            measured_tokens_per_s=run.output_tokens_per_s,
            simulated_tokens_per_s=predicted.num_output_tokens / predicted.duration_s,
        )
        verdicts.append(verdict)
        print(verdict, flush=True)
    worst = max(abs(verdict.throughput_error) for verdict in verdicts)
    print(f"worst: step times {max(verdict.step_error for verdict in verdicts):.1%}, throughput {worst:.1%}")
    return verdicts


def replay_workload(engine: SimulatedEngine, workload: Workload, **taking: Any) -> ReplaySummary:
    """The workload's requests through a simulated engine; a closed-loop user's turns follow one another's ends."""
    chains = {str(chain[0].index): deque(chain) for chain in workload.chains}
    first = sorted((chain.popleft() for chain in chains.values()), key=lambda request: request.arrival_s)

    def next_turn(record: RequestRecord) -> Arrival | None:
        chain = chains.pop(record.request_id)
        if not chain:
            return None
        request = chain.popleft()
        chains[str(request.index)] = chain
        return arrival_of(request)

    return replay(engine, map(arrival_of, first), follow_up=next_turn, **taking)


def arrival_of(request: WorkloadRequest) -> Arrival:
    return Arrival(
        len(request.prompt_token_ids), request.output_len, request.arrival_s,
        prompt_token_ids=request.prompt_token_ids, request_id=str(request.index),
    )  # fmt: skip

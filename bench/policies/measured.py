"""Policies in the real engine, in this process: one model loaded once, an engine around it for each run."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.metrics import Objective, RequestRecord
from bench.policies.runs import Case, PolicyRun, StepCounter
from bench.policies.simulated import policy_run
from bench.prepared import build_prepared_core
from bench.workloads import Workload
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.device import resolve_device
from engine.model.description import describe_model
from engine.model.hub import resolve
from engine.model.loader import load_described
from engine.observer import StepObserver
from engine.request import GenerationRequest, Request
from engine.sampling.params import SamplingParams
from engine.scheduling.plan import StepPlan
from engine.text.tokenizer import load_tokenizer
from engine.trace import TraceWriter


class Observers:
    """A StepObserver that passes on to several."""

    def __init__(self, observers: Sequence[StepObserver]) -> None:
        self._observers = observers

    def on_step(self, plan: StepPlan, sampled: Mapping[str, int], begun_s: float, ended_s: float) -> None:
        for observer in self._observers:
            observer.on_step(plan, sampled, begun_s, ended_s)

    def on_finish(self, request: Request, now_s: float) -> None:
        for observer in self._observers:
            observer.on_finish(request, now_s)

    def close(self) -> None:
        for observer in self._observers:
            observer.close()


class MeasuredTarget:
    """A model on this machine."""

    def __init__(
        self, model: str, *, device: str, capacity_tokens: int | None, max_model_len: int | None = None,
        block_size: int | None = None, num_threads: int | None = None,
    ) -> None:  # fmt: skip
        self.model = model
        self.device = device
        self.capacity_tokens = capacity_tokens
        self.max_model_len = max_model_len
        self.block_size = block_size
        self._settings = {
            "model": model, "device": device, "max_model_len": max_model_len, "num_threads": num_threads,
            "kv_cache": {"prefix_caching": False, "capacity_tokens": capacity_tokens, "block_size": block_size},
        }  # fmt: skip
        config = self._config(Case("chunked"))
        description = describe_model(resolve(model), config, str(resolve_device(config)))
        tokenizer = load_tokenizer(description.resolved.path)
        self._loaded = load_described(
            description, num_valid_tokens=tokenizer.vocab_size, tokenizer_eos_token_ids=tokenizer.eos_token_ids
        )

    def description(self) -> dict[str, Any]:
        return dict(self._settings)

    def run(
        self, case: Case, workload: Workload, objective: Objective, *, repeat: int = 0, trace: Path | None = None
    ) -> PolicyRun:
        """One run, all requests at once, with a trace of its steps where one is asked for."""
        counter = StepCounter()
        observers: list[StepObserver] = [counter]
        core = build_prepared_core(self._config(case), model=self._loaded, observer=Observers(observers))
        stats = core.stats()
        block_size = stats.kv_capacity_tokens // stats.kv_blocks_total
        counter.watch(lambda: core.stats().kv_blocks_used, num_blocks=stats.kv_blocks_total, block_size=block_size)
        if trace is not None:
            header = {
                "model": self.model, "policy": case.policy, "parameters": dict(case.parameters),
                "block_size": block_size, "num_blocks": stats.kv_blocks_total,
            }  # fmt: skip
            observers.append(TraceWriter.open(trace, header))
        records = _run(core, workload)
        core.check_integrity()
        core.close()
        return policy_run(case, workload, records, counter, objective, repeat)

    def _config(self, case: Case) -> EngineConfig:
        return EngineConfig.model_validate({
            **self._settings, "scheduler": {"policy": case.policy, **case.parameters}
        })  # fmt: skip


def _run(core: EngineCore, workload: Workload) -> list[RequestRecord]:
    """Each output token is delivered when its step has ended."""
    begun_s = time.perf_counter()
    delivery_s: dict[str, list[float]] = {}
    for request in workload.requests:
        sampling = SamplingParams(max_tokens=request.output_len, temperature=0.0, ignore_eos=True)
        core.add_request(GenerationRequest(str(request.index), request.prompt_token_ids, sampling))
        delivery_s[str(request.index)] = []
    errors: dict[str, str] = {}
    while core.has_work:
        outputs = core.step()
        now_s = time.perf_counter() - begun_s
        for output in outputs:
            delivery_s[output.request_id] += [now_s] * len(output.token_ids)
            if output.error:
                errors[output.request_id] = output.error
        if not outputs and core.wait_until_s is not None:
            with suppress(OverflowError):                  # infinite: only an arrival could change that
                time.sleep(max(0.0, core.wait_until_s - time.monotonic()))
    return [_record(request, delivery_s[str(request.index)], errors) for request in workload.requests]


def _record(request: Any, delivery_s: Sequence[float], errors: Mapping[str, str]) -> RequestRecord:
    num_tokens = len(delivery_s)
    error = errors.get(str(request.index))
    if error is None and num_tokens != request.output_len:
        error = f"{num_tokens} output tokens, not {request.output_len}"
    return RequestRecord(
        request.index, len(request.prompt_token_ids), num_tokens, 0.0, tuple(delivery_s),
        delivery_s[-1] if delivery_s else 0.0, error,
    )  # fmt: skip

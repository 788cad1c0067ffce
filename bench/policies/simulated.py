"""Policies in simulated engines: workloads in, records and figures out, as a run of the real engine gives them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.metrics import Objective, RequestRecord, summarize
from bench.policies.findings import DeviceFacts
from bench.policies.runs import Case, PolicyRun, StepCounter
from bench.workloads import Workload, WorkloadRequest
from engine.config import KVCacheConfig
from engine.simulation.build import SimulationPlan, plan_simulation
from engine.simulation.devices import DeviceModel
from engine.simulation.records import Arrival
from engine.simulation.records import RequestRecord as SimulatedRecord
from engine.simulation.replay import replay


@dataclass(frozen=True, slots=True)
class SimulatedTarget:
    """A model on a simulated device."""

    model: str
    device: str
    capacity_tokens: int | None = None         # of the KV pool; None: what the device's memory leaves

    def plan(self, case: Case) -> SimulationPlan:
        """Raises ConfigError if such an engine could not run."""
        return plan_simulation(
            {"policy": case.policy, **case.parameters},
            model=self.model,
            device=self.device,
            kv_cache=KVCacheConfig(prefix_caching=False, capacity_tokens=self.capacity_tokens),
        )

    def description(self, case: Case) -> dict[str, Any]:
        plan = self.plan(case)
        memory = plan.memory
        return {
            "model": self.model, "device": self.device, "kv_capacity_tokens": memory.capacity_tokens,
            "weight_bytes": memory.weight_bytes, "kv_bytes_per_token": memory.kv_bytes_per_token,
            "budget_bytes": memory.budget_bytes, "max_model_len": plan.description.max_model_len,
        }  # fmt: skip

    def facts(self) -> DeviceFacts | None:
        """What explanations build on; None for a device that was measured, whose bandwidth is not known."""
        plan = self.plan(Case("chunked"))
        if not isinstance(plan.device, DeviceModel):
            return None
        device, memory = plan.device, plan.memory
        bytes_per_s = device.bytes_per_s * device.bytes_efficiency
        return DeviceFacts(
            memory.weight_bytes, bytes_per_s, memory.capacity_tokens, plan.description.max_model_len
        )

    def run(self, case: Case, workload: Workload, objective: Objective, *, repeat: int = 0) -> PolicyRun:
        """One replay. Raises ConfigError if such an engine could not run, RequestFailed never: refusals are records."""
        plan = self.plan(case)
        counter = StepCounter()
        engine = plan.build(observer=counter)
        kv = engine.scheduler.kv
        counter.watch(lambda: kv.num_used_blocks, num_blocks=kv.num_blocks, block_size=kv.block_size)
        done = replay(engine, [arrival(request) for request in workload.requests])
        records = [_record(record, workload) for record in done.records]
        records.sort(key=lambda record: record.index)
        return policy_run(case, workload, records, counter, objective, repeat)


def arrival(request: WorkloadRequest) -> Arrival:
    """Without token ids: a simulated engine computes none. It asks for as many tokens as it will have."""
    return Arrival(
        len(request.prompt_token_ids), request.output_len, request.arrival_s, request_id=str(request.index)
    )


def _record(record: SimulatedRecord, workload: Workload) -> RequestRecord:
    index = int(record.request_id)
    wanted = workload.requests[index].output_len
    error = record.error
    if error is None and record.num_output_tokens != wanted:
        error = f"{record.num_output_tokens} output tokens, not {wanted}"
    arrived = record.arrival
    return RequestRecord(
        index, arrived.prompt_len, record.num_output_tokens, arrived.arrival_s, record.token_times_s, record.end_s,
        error,
    )  # fmt: skip


def policy_run(
    case: Case, workload: Workload, records: list[RequestRecord], counter: StepCounter, objective: Objective,
    repeat: int,
) -> PolicyRun:  # fmt: skip
    """The figures of a run from what clients and observer saw."""
    parameters: Mapping[str, Any] = workload.parameters
    complete = [record for record in records if record.error is None]
    return PolicyRun(
        case=case,
        workload=workload.name,
        cap=parameters.get("cap", 0),
        rate=parameters.get("rate"),
        repeat=repeat,
        summary=summarize(records, objective),
        steps=counter.figures(),
        e2el_s=tuple(round(record.e2el_s, 6) for record in complete),
        ttft_s=tuple(round(record.ttft_s, 6) for record in complete),
    )

"""The two targets, held against each other: a policy computes the same rows in virtual time and on the engine."""

import pytest

from bench.metrics import Objective
from bench.policies.measured import MeasuredTarget
from bench.policies.runs import Case
from bench.policies.simulated import SimulatedTarget
from bench.workloads import Workload, WorkloadRequest
from engine.scheduling.policies import policy_names

OBJECTIVE = Objective(1.0, 1.0)
PROMPTS, OUTPUTS = (9, 4, 12, 7, 5, 10), (3, 8, 1, 6, 5, 2)
WORKLOAD = Workload(
    "burst", 0, {"cap": 8},
    tuple(WorkloadRequest(i, tuple(range(1, 1 + p)), o) for i, (p, o) in enumerate(zip(PROMPTS, OUTPUTS, strict=True))),
)  # fmt: skip
SIMULATED = SimulatedTarget("opt-13b", "sim:a100-40gb")
CASES = [
    Case(policy, {"batch_size": 3} if policy in ("static", "static_impatient", "packed_static", "turbo") else {})
    for policy in policy_names()
]


@pytest.fixture(scope="module")
def engine():
    return MeasuredTarget("random:tiny", device="cpu", capacity_tokens=512, max_model_len=64, num_threads=1)


def rows(run):
    return run.steps.prefill_rows, run.steps.decode_rows, run.steps.idle_rows


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.policy)
def test_every_policy_serves_the_workload_in_virtual_time(case):
    run = SIMULATED.run(case, WORKLOAD, OBJECTIVE)
    assert run.summary.num_failed == 0
    assert run.summary.num_output_tokens == sum(OUTPUTS)
    assert run.steps.prefill_rows + run.steps.decode_rows == sum(PROMPTS) + sum(OUTPUTS) - len(OUTPUTS)
    assert len(run.e2el_s) == len(PROMPTS)


@pytest.mark.parametrize("policy", ["static", "packed_static", "orca", "vllm_v0", "chunked"])
def test_the_engine_computes_the_rows_that_the_simulator_charges(engine, policy):
    [case] = [case for case in CASES if case.policy == policy]
    simulated, measured = SIMULATED.run(case, WORKLOAD, OBJECTIVE), engine.run(case, WORKLOAD, OBJECTIVE)
    assert measured.summary.num_failed == 0
    assert rows(measured) == rows(simulated)
    assert measured.steps.num_steps == simulated.steps.num_steps


def test_static_computes_batch_times_longest_rows():
    """Two batches of three: prompts of 12 and of 10, then to the longest output, 8 and 6."""
    run = SIMULATED.run(CASES[0], WORKLOAD, OBJECTIVE)
    assert sum(rows(run)) == 3 * (12 + 8 - 1) + 3 * (10 + 6 - 1)


def test_a_request_that_can_never_fit_is_a_failed_record():
    small = SimulatedTarget("opt-13b", "sim:a100-40gb", capacity_tokens=64)
    huge = Workload("burst", 0, {"cap": 8}, (*WORKLOAD.requests, WorkloadRequest(6, (1,) * 100, 4)))
    run = small.run(Case("chunked"), huge, OBJECTIVE)
    assert run.summary.num_failed == 1
    assert run.summary.num_output_tokens == sum(OUTPUTS)

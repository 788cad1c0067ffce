"""The small run behind the pictures of slots by iterations: a real engine, a pool that is scarce, every policy."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.metrics import Objective
from bench.policies.measured import MeasuredTarget
from bench.policies.runs import Case
from bench.step_trace import StepTrace, read_step_trace
from bench.workloads import Draw, Workload, WorkloadRequest
from engine.scheduling.policies import parameters_class, policy_names

MODEL = "random:tiny"
NUM_REQUESTS = 14
POOL_TOKENS = 192
_PROMPT_LENS = (4, 24)                     # uniform
_MEAN_OUTPUT_LEN, _CAP = 14, 40            # exponential, as in the sweeps
_BATCH_SIZE = POOL_TOKENS // (_PROMPT_LENS[1] + _CAP)     # what the pool holds at full length
# Steps of a few tokens, so that prompts are cut where a policy cuts them.
_PARAMETERS: Mapping[str, Any] = {
    "batch_size": _BATCH_SIZE, "max_batch_total_tokens": POOL_TOKENS, "token_budget": 24,
    "enable_chunked_context": True,
}  # fmt: skip
_OWN: Mapping[str, Mapping[str, Any]] = {
    "chunked": {"max_num_batched_tokens": 24}, "fair": {"max_num_batched_tokens": 24},
    "trtllm_no_evict": {"max_num_tokens": 32}, "trtllm_max_utilization": {"max_num_tokens": 32},
}  # fmt: skip


def picture_workload(seed: int) -> Workload:
    """All at once. Requests are numbered from 1, as people count them."""
    draw = Draw(range(1, 500), seed)
    prompt_lens = draw.lengths.integers(*_PROMPT_LENS, NUM_REQUESTS, endpoint=True).tolist()
    outputs = draw.exponential_lengths(NUM_REQUESTS, mean=_MEAN_OUTPUT_LEN, cap=_CAP)
    requests = tuple(
        WorkloadRequest(i, draw.prompt(prompt_len), output)
        for i, (prompt_len, output) in enumerate(zip(prompt_lens, outputs, strict=True), start=1)
    )
    return Workload("picture", seed, {"cap": _CAP}, requests)


def picture_cases(only: Sequence[str] = ()) -> list[Case]:
    found = []
    for policy in only or policy_names():
        own = parameters_class(policy).model_fields
        parameters = {key: value for key, value in _PARAMETERS.items() if key in own} | dict(_OWN.get(policy, {}))
        found.append(Case(policy, parameters))
    return found


def picture_traces(only: Sequence[str] = (), *, seed: int = 3) -> dict[str, StepTrace]:
    """Policy -> the steps of its run on a small random model, on the CPU. Takes some seconds for all."""
    target = MeasuredTarget(
        MODEL, device="cpu", capacity_tokens=POOL_TOKENS, max_model_len=_PROMPT_LENS[1] + _CAP, block_size=8,
        num_threads=1,                       # of products this small a second thread only waits for the first
    )  # fmt: skip
    workload = picture_workload(seed)
    traces = {}
    with TemporaryDirectory() as folder:
        for case in picture_cases(only):
            path = Path(folder) / f"{case.policy}.jsonl"
            target.run(case, workload, Objective(1.0, 1.0), trace=path)
            traces[case.policy] = read_step_trace(path)
    return traces

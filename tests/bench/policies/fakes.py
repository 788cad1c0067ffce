"""Runs with figures that a test chooses."""

from bench.metrics import Objective, RequestRecord, summarize
from bench.policies.runs import Case, Occupancy, PolicyRun, StepFigures

OBJECTIVE = Objective(1.0, 1.0)


def run(
    policy, tokens_per_s, *, cap=1536, variant="", repeat=0, rate=None, parameters=None, num_steps=100, running=4.0,
    batch=None, latencies=(1.0, 2.0, 3.0), failed=0,
):  # fmt: skip
    """1000 tokens, a fifth of them output, at the given rate."""
    seconds = 1000 / tokens_per_s
    records = [RequestRecord(0, 800, 200, 0.0, tuple([seconds / 2] * 199 + [seconds]), seconds)]
    records += [RequestRecord(1 + i, 1, 0, 0.0, (), 0.0, "refused") for i in range(failed)]
    occupancy = tuple(Occupancy(i, seconds * i / num_steps, 0.0, running, 1.0) for i in range(0, num_steps, 10))
    steps = StepFigures(num_steps, 3, 800, 199, 60, running, batch or running, 0.9, 0.1, 16, occupancy)
    return PolicyRun(
        Case(policy, parameters or {}, variant), "burst" if rate is None else "poisson", cap, rate, repeat,
        summarize(records, OBJECTIVE), steps, latencies, latencies,
    )  # fmt: skip

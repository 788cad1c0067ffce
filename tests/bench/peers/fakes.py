"""Measurements with chosen speeds, and peers' processes that are a few lines of Python."""

import sys

from bench.metrics import Objective, RequestRecord, summarize
from bench.peers.findings import Comparison
from bench.server_stats import ServerFigures
from bench.systems import Measurement
from bench.workloads import SETTINGS, Burst, Single, build_workload

OBJECTIVE = Objective(2.0, 0.25)


def burst(cap, seed=0):
    return build_workload(Burst(num_requests=3, prompt_len=4, mean_output_len=2, cap=cap), range(10), seed)


def single(seed=0):
    return build_workload(Single(num_requests=2, prompt_len=4, output_len=3), range(10), seed)


def measurement(system, speed, *, workload=None, repeat=0, error=None, pss=2**30, memory_bytes_per_s=None):
    """One request of 100 output tokens at `speed` tokens/s, the first of them after a hundredth of the time."""
    seconds = 100 / speed
    times = (seconds / 100, seconds)
    records = (RequestRecord(0, 10, 100, 0.0, times, seconds, error),)
    workload = workload or build_workload(SETTINGS["cpu"]["burst"], range(100), seed=repeat)
    figures = ServerFigures(memory_bytes_per_s=memory_bytes_per_s)
    return Measurement(system, workload, repeat, summarize(records, OBJECTIVE), figures, pss, records)


def comparison(
    outcomes, systems, *, labels=("burst 128",), reasons=None, descriptions=None, startups_s=None, others=()
):
    return Comparison(
        model="demo", setting="cpu", seed=0, systems=tuple(systems), labels=tuple(labels), others=tuple(others),
        outcomes=tuple(outcomes), reasons=reasons or {}, descriptions=descriptions or {}, startups_s=startups_s or {},
    )  # fmt: skip


_PEER = """
import sys, time
from bench.metrics import RequestRecord
from bench.peers.protocol import serve_workloads, take_stdout

out = take_stdout()
print("a library that chatters")

def run(workload, on_record):
    {before}
    for request in reversed(workload.requests):
        times = tuple(float(i + 1) for i in range(request.output_len))
        on_record(RequestRecord(request.index, 4, request.output_len, 0.0, times, times[-1]))
    {after}

serve_workloads(out, {{"dtype": "float32", "versions": {{"fake": "1.0"}}}}, run)
"""


def peer_process(*, before="pass", after="return {'num_preemptions': 2}"):
    """The command line of a peer whose every token takes a second by its own account."""
    return [sys.executable, "-c", _PEER.format(before=before, after=after)]


CRASHES = peer_process(before="print('ValueError: a weight is missing', file=sys.stderr); raise SystemExit(3)")
HANGS = peer_process(before="time.sleep(600)")

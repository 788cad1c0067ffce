"""A workload through an engine that is stepped: requests join as they fall due, each token timed by its step."""

import heapq
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from bench.metrics import RequestRecord
from bench.workloads import Workload, WorkloadRequest


class SteppedEngine(Protocol):
    """What a peer's library has to be able to do."""

    def add(self, request: WorkloadRequest) -> None:
        """Queue the request: greedy, EOS ignored, exactly `output_len` tokens."""

    def step(self) -> Iterable[tuple[int, Sequence[float]]]:
        """Work for a while; (index of a request, when each of its new tokens was there, by `time.perf_counter`)."""


def run_stepped(
    workload: Workload,
    engine: SteppedEngine,
    on_record: Callable[[RequestRecord], None],
    *,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Run the workload; a record goes out as soon as its request has its last token.

    Raises RuntimeError if the engine makes a token that nobody waits for.
    """
    start_s = clock()
    due = [(chain[0].arrival_s, chain[0].index, chain) for chain in workload.chains]   # a heap
    heapq.heapify(due)
    running: dict[int, tuple[float, Sequence[WorkloadRequest], list[float]]] = {}
    while due or running:
        now_s = clock() - start_s
        if not running and due[0][0] > now_s:
            sleep(due[0][0] - now_s)
            continue
        while due and due[0][0] <= now_s:
            due_s, index, chain = heapq.heappop(due)
            running[index] = due_s, chain, []
            engine.add(chain[0])
        for index, token_s in engine.step():
            if index not in running:
                raise RuntimeError(f"a token for request {index}, which has all of its tokens")
            due_s, (request, *later), delivery_s = running[index]
            delivery_s += [second - start_s for second in token_s]
            if len(delivery_s) >= request.output_len:
                del running[index]
                on_record(_record(request, due_s, delivery_s))
                if later:
                    heapq.heappush(due, (delivery_s[-1], later[0].index, tuple(later)))


def _record(request: WorkloadRequest, due_s: float, delivery_s: Sequence[float]) -> RequestRecord:
    num_tokens = len(delivery_s)
    error = None if num_tokens == request.output_len else f"{num_tokens} output tokens, not {request.output_len}"
    return RequestRecord(
        request.index, len(request.prompt_token_ids), num_tokens, due_s, tuple(delivery_s), delivery_s[-1], error
    )

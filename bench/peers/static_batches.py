"""Static batching: a batch is formed from what waits, runs to its longest member, and only then makes room."""

import heapq
import time
from collections.abc import Callable, Sequence

from bench.metrics import RequestRecord
from bench.workloads import Workload, WorkloadRequest

# (requests of the batch, number of tokens to generate, called after each token of the whole batch)
GenerateBatch = Callable[[Sequence[WorkloadRequest], int, Callable[[], None]], None]


def run_static_batches(
    workload: Workload,
    generate: GenerateBatch,
    on_record: Callable[[RequestRecord], None],
    *,
    batch_size: int,
    clock: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Run the workload in batches of at most `batch_size`, oldest first.

    A member's tokens count as delivered at the step that made them, as if they were streamed; those that the batch
    generates for it beyond what it asked for are not counted. It ends with its batch.
    """
    start_s = clock()

    def now_s() -> float:
        return clock() - start_s

    due = [(chain[0].arrival_s, chain[0].index, chain) for chain in workload.chains]   # a heap
    heapq.heapify(due)
    while due:
        sleep(max(0.0, due[0][0] - now_s()))
        batch = [heapq.heappop(due)]
        while due and len(batch) < batch_size and due[0][0] <= now_s():
            batch.append(heapq.heappop(due))
        step_s = _step_times([chain[0] for _, _, chain in batch], generate, now_s)
        end_s = now_s()
        for due_s, index, (request, *later) in batch:
            delivery_s = tuple(step_s[: request.output_len])
            num_prompt_tokens = len(request.prompt_token_ids)
            on_record(RequestRecord(index, num_prompt_tokens, request.output_len, due_s, delivery_s, end_s))
            if later:
                heapq.heappush(due, (end_s, later[0].index, tuple(later)))


def _step_times(
    requests: Sequence[WorkloadRequest], generate: GenerateBatch, now_s: Callable[[], float]
) -> list[float]:
    """Generate for the batch's longest member; returns when each token was there."""
    step_s: list[float] = []
    longest = max(request.output_len for request in requests)
    generate(requests, longest, lambda: step_s.append(now_s()))
    return step_s

"""Replaying a workload against an asynchronous system: each request sent when it is due, each delivery timed."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from bench.metrics import RequestRecord
from bench.workloads import Workload, WorkloadRequest


class RequestFailed(Exception):
    """The system did not answer a request as asked; the text is recorded as the request's error."""


class Send(Protocol):
    """Sends one request, calls `delivered` at each piece of output, and returns the number of output tokens."""

    async def __call__(self, request: WorkloadRequest, delivered: Callable[[], None]) -> int: ...


async def replay(workload: Workload, send: Send, on_done: Callable[[RequestRecord], None]) -> list[RequestRecord]:
    """Run the whole workload and return one record per request, in the workload's order.

    Open-loop requests go out at their arrival times, whatever is still unanswered. A request that follows another of
    its user is due when that one has ended.
    """
    start_s = time.perf_counter()
    records: list[RequestRecord] = []

    async def run(chain: Sequence[WorkloadRequest]) -> None:
        due_s = chain[0].arrival_s
        for request in chain:
            await asyncio.sleep(due_s - (time.perf_counter() - start_s))
            record = await _timed(request, send, due_s, start_s)
            records.append(record)
            on_done(record)
            due_s = record.end_s

    async with asyncio.TaskGroup() as tasks:
        for chain in workload.chains:
            tasks.create_task(run(chain))
    return sorted(records, key=lambda record: record.index)


async def _timed(request: WorkloadRequest, send: Send, due_s: float, start_s: float) -> RequestRecord:
    delivery_s: list[float] = []
    num_output_tokens, error = 0, None
    try:
        num_output_tokens = await send(request, lambda: delivery_s.append(time.perf_counter() - start_s))
        if num_output_tokens != request.output_len:
            error = f"{num_output_tokens} output tokens, not {request.output_len}"
        elif not delivery_s:
            error = "no output was delivered"
    except RequestFailed as failure:
        error = str(failure)
    return RequestRecord(
        index=request.index,
        num_prompt_tokens=len(request.prompt_token_ids),
        num_output_tokens=num_output_tokens,
        arrival_s=due_s,
        delivery_s=tuple(delivery_s),
        end_s=time.perf_counter() - start_s,
        error=error,
    )

"""Weighted fair queueing on tokens: tenants with work get tokens in the ratio of their weights.

Every token computed for a tenant advances its virtual time by 1 / weight (start-time fair queueing; virtual_time.py).
Admission: the waiting request of the tenant with the least virtual time, when a seat is free and its whole sequence
fits and leaves `watermark` of the blocks. Until it can start, nobody starts. Priority orders a tenant's own requests
only: it is no way past other tenants. Requests without a tenant are one tenant's.
Composition: as chunked, decodes and prompt chunks in one token budget, but each next place goes to the tenant that is
behind. A chunk leaves one token of the budget for each running request behind it.
Reservation: the sequence whole at the start, then block by block. Shortage: recompute the newest request, of the
lowest priority, of the most served tenant. A recompute is charged: it is work done for the tenant.
Starvation: while a tenant waits, another starts a request only as long as its virtual time is not larger. So before
the tenant's first request is next to start, another tenant of weight w gets, beside what its running requests still
compute, at most w times its lag plus one request; one that returns from idling has no lag, so a tie at most.
Between two tenants that always have requests waiting, virtual times differ by no more than `max_num_seqs` of the
largest requests over the smaller weight, as long as nothing is recomputed.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Annotated

from pydantic import Field

from engine.request import RUNNING, Request
from engine.scheduling.policies.chunked import Chunked
from engine.scheduling.policy import Limits
from engine.scheduling.step_builder import StepBuilder
from engine.scheduling.virtual_time import VirtualTimes

Tenant = str | None
Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Queue:
    """One tenant's requests by priority, within a priority the running first. Of those that wait, one is looked at.

    The queue may be of any length: a step takes no time for what it cannot start.
    """

    def __init__(self, running: Iterable[Request], waiting: Iterator[Request]) -> None:
        self._running, self._waiting = deque(running), waiting
        self._next_waiting = next(waiting, None)
        self.head: Request | None = None               # whose turn it is; None: nobody is left
        self.advance(True)

    def advance(self, admits: bool) -> None:
        """The next becomes the head. If nobody may start any more, only those who run are left."""
        if not admits:
            self._next_waiting = None
            while self._running and self._running[0].status is not RUNNING:    # preempted meanwhile
                self._running.popleft()
        first, waiting = self._running[0] if self._running else None, self._next_waiting
        if first is not None and (waiting is None or first.priority <= waiting.priority):
            self.head = self._running.popleft()
        else:
            self.head = waiting
            self._next_waiting = None if waiting is None else next(self._waiting, None)


def _queues(step: StepBuilder) -> dict[Tenant, _Queue]:
    running: defaultdict[Tenant, list[Request]] = defaultdict(list)
    for request in step.running:
        running[request.generation.tenant].append(request)
    waiting = step.waiting_by_tenant()
    tenants = dict.fromkeys([*running, *waiting])
    return {tenant: _Queue(running.get(tenant, ()), waiting.get(tenant, iter(()))) for tenant in tenants}


class Fair(Chunked):
    class Parameters(Chunked.Parameters):
        weights: dict[str, Weight] = Field({}, description="tenant: its share as against others; default: 1 each")

    def __init__(self, parameters: Parameters, limits: Limits) -> None:
        super().__init__(parameters, limits)
        self.times = VirtualTimes(parameters.weights)

    def plan(self, step: StepBuilder) -> None:
        queues = _queues(step)
        self.times.enter(queues)
        turns = [self._turn(queue.head) for queue in queues.values() if queue.head is not None]
        heapify(turns)
        admits = True
        while turns:
            budget = self.max_num_batched_tokens - step.num_tokens
            if budget == 0 or (not admits and step.num_running == len(step)):
                return
            queue = queues[heappop(turns)[-1]]
            request = queue.head
            assert request is not None
            if request.status is RUNNING:
                self._continue(step, request, self._chunk(step, budget, num_own=1))
            else:
                admits = admits and not step.preempted and self._start(step, request, self._chunk(step, budget))
            queue.advance(admits)
            if queue.head is not None:
                heappush(turns, self._turn(queue.head))

    def _turn(self, request: Request) -> tuple[float, int, Tenant]:
        """Orders tenants by virtual time; among equals, by whose next request came first."""
        tenant = request.generation.tenant
        return self.times[tenant], request.arrival_index, tenant

    def _chunk(self, step: StepBuilder, budget: int, *, num_own: int = 0) -> int:
        """`num_own` is 1 for a running request, which is not behind itself."""
        num_behind = step.num_running - len(step) - num_own
        return max(1, min(budget - num_behind, self.max_chunk))

    def _continue(self, step: StepBuilder, request: Request, chunk: int) -> None:
        while not step.schedule(request, chunk):
            victim = max(step.running, key=self._victim_order)
            self._charge(victim, -step.num_scheduled_tokens.get(victim.request_id, 0))
            step.preempt(victim)
            if victim is request:
                return
        self._charge(request, step.num_scheduled_tokens[request.request_id])

    def _victim_order(self, request: Request) -> tuple[float, int, int]:
        return self.times[request.generation.tenant], request.priority, request.arrival_index

    def _start(self, step: StepBuilder, request: Request, chunk: int) -> bool:
        leaving = int(self.watermark * step.num_blocks) if step.num_running else 0   # alone, a request may have all
        if step.num_running >= self.max_num_seqs or not step.fits(request, request.num_tokens, leaving=leaving):
            return False
        step.reserve(request, request.num_tokens)
        step.schedule(request, chunk)
        self._charge(request, step.num_scheduled_tokens[request.request_id])
        return True

    def _charge(self, request: Request, num_tokens: int) -> None:
        self.times.charge(request.generation.tenant, num_tokens)

"""StepBuilder: one step in the making. All that a policy sees, and the only hands it has."""

from collections.abc import Iterator, Mapping, Sequence

from engine.kv_cache.manager import KVCacheManager
from engine.request import RUNNING, Request, RequestStatus
from engine.scheduling.queues import RunningQueue, WaitingQueue


class StepBuilder:
    """What a policy reads to decide a step, and the acts by which it decides.

    While a policy plans, iterating is always safe: whoever it admits or preempts changes queue only after the step
    is planned, and is left out of what the iterators still have to give.
    """

    def __init__(
        self,
        waiting: WaitingQueue,
        running: RunningQueue,
        seats: Mapping[str, Request],
        kv: KVCacheManager,
        *,
        max_num_slots: int,
        max_model_len: int,
        now_s: float,
    ) -> None:
        self._waiting = waiting
        self._running = running
        self._seats = seats
        self._kv = kv
        self._max_num_slots = max_num_slots                     # the most that cache and context give one request
        self.max_model_len = max_model_len
        self.now_s = now_s
        self.wait_until_s: float | None = None                  # set by a policy that holds back: nothing before then,
        #                                                         unless a request arrives or ends
        self.num_tokens = 0                                     # scheduled so far
        self.num_scheduled_tokens: dict[str, int] = {}          # these four as in StepPlan
        self.start: dict[str, int] = {}
        self.block_tables: dict[str, tuple[int, ...]] = {}
        self.padding: dict[str, int] = {}
        self.sampling: list[str] = []
        self.admitted: list[Request] = []
        self.preempted: list[Request] = []
        self.num_running = len(running)                         # requests that hold blocks, those admitted in this step
        #                                                         included, seats not

    # What there is

    def __len__(self) -> int:
        """Requests scheduled so far."""
        return len(self.num_scheduled_tokens)

    @property
    def running(self) -> Iterator[Request]:
        """Requests running before this step, by priority and arrival."""
        return (request for request in self._running if request.status is RUNNING)

    @property
    def waiting(self) -> Iterator[Request]:
        """Requests to admit, by priority and arrival; a preempted one comes first in its priority."""
        return (request for request in self._waiting if request.status is not RUNNING)

    def waiting_by_tenant(self) -> dict[str | None, Iterator[Request]]:
        """`waiting` of each tenant that has some. Takes time for every tenant, none for their requests."""
        return {
            tenant: (request for request in requests if request.status is not RUNNING)
            for tenant, requests in self._waiting.by_tenant.items()
        }

    def by_priority(self) -> Iterator[Request]:
        """Running and waiting requests in one order: by priority; within a priority first the running."""
        waiting = self.waiting
        head = next(waiting, None)
        for request in self._running:
            while head is not None and head.priority < request.priority:
                yield head
                head = next(waiting, None)
            if request.status is RUNNING:         # it may have been preempted meanwhile
                yield request
        if head is not None:
            yield head
            yield from waiting

    @property
    def newest(self) -> Request | None:
        """The last of `running`: of the lowest priority, the newest arrival."""
        for request in reversed(self._running):
            if request.status is RUNNING:
                return request
        return None

    @property
    def seats(self) -> Iterator[Request]:
        """Finished requests that keep their blocks, where the policy `keeps_seats`."""
        return iter(self._seats.values())

    @property
    def num_waiting(self) -> int:
        return len(self._waiting) - len(self.admitted)

    @property
    def block_size(self) -> int:
        return self._kv.block_size

    @property
    def num_blocks(self) -> int:
        return self._kv.num_blocks

    @property
    def num_available_blocks(self) -> int:
        return self._kv.num_available_blocks

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks for `num_tokens` of one request, or for the most it can ever need: as many as `reserve` gives it."""
        return self._kv.num_blocks_for(min(num_tokens, self._max_num_slots))

    def num_blocks_held(self, request: Request) -> int:
        """Blocks that a running request holds now, shared ones included."""
        return self._kv.num_blocks_held(request)

    def num_cached_tokens(self, request: Request) -> int:
        """Tokens of a waiting request that need not be computed if it is admitted now."""
        return len(self._kv.find_prefix(request)) * self._kv.block_size

    def fits(self, request: Request, num_tokens: int, *, leaving: int = 0) -> bool:
        """Whether `request` could hold `num_tokens` in all now and leave `leaving` blocks available."""
        return self._kv.fits(request, num_tokens, leaving=leaving)

    # What to do

    def schedule(self, request: Request, num_tokens: int) -> bool:
        """Computes up to `num_tokens` (at least 1) more tokens of `request` in this step; admits it if it waits.

        False, and nothing has changed, when too few blocks are available.
        """
        request_id, num_known = request.request_id, len(request.token_ids)
        if request_id in self.num_scheduled_tokens or num_tokens < 1:
            raise ValueError(f"'{request_id}' is scheduled twice in one step, or for {num_tokens} tokens")
        if request.status is RUNNING:
            end = request.num_computed_tokens + num_tokens
            if end > num_known:
                end = num_known
            block_table = self._kv.grown_table(request, end)
            if block_table is None:
                return False
        else:
            prefix = self._kv.find_prefix(request)
            end = min(len(prefix) * self._kv.block_size + num_tokens, num_known)
            if not self._admit(request, end, prefix):
                return False
            block_table = self._kv.block_table(request)
        start = request.num_computed_tokens
        self.num_tokens += end - start
        self.num_scheduled_tokens[request_id] = end - start
        self.start[request_id] = start
        self.block_tables[request_id] = block_table
        if end == num_known:
            self.sampling.append(request_id)
        return True

    def reserve(self, request: Request, num_tokens: int) -> bool:
        """Gives `request` blocks for `num_tokens` in all, or for the most it can ever need; admits it if it waits.

        Within what it has reserved a request never lacks a block. False, and nothing has changed, when too few
        blocks are available.
        """
        num_slots = min(num_tokens, self._max_num_slots)
        if request.status is RUNNING:
            return self._kv.allocate(request, num_slots)
        return self._admit(request, num_slots, self._kv.find_prefix(request))

    def preempt(self, request: Request) -> None:
        """Takes a running request's blocks, and its part in this step; it waits again, to be recomputed."""
        request_id = request.request_id
        if request_id in self.num_scheduled_tokens:
            self.num_tokens -= self.num_scheduled_tokens.pop(request_id)
            if request_id in self.sampling:
                self.sampling.remove(request_id)
            for of_request in (self.start, self.block_tables, self.padding):
                of_request.pop(request_id, None)
        self._kv.free(request)
        request.status = RequestStatus.PREEMPTED
        self.preempted.append(request)
        self.num_running -= 1

    def pad(self, request: Request, rows: int) -> None:
        """Computes and discards `rows` more rows, for a scheduled request or for a finished one in its seat."""
        self.padding[request.request_id] = rows
        self.start.setdefault(request.request_id, request.num_computed_tokens)
        self.block_tables[request.request_id] = self._kv.block_table(request)

    def _admit(self, request: Request, num_slots: int, prefix: Sequence[int]) -> bool:
        if not self._kv.allocate(request, num_slots, prefix):
            return False
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = len(prefix) * self._kv.block_size
        self.admitted.append(request)
        self.num_running += 1
        return True

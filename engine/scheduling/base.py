"""Scheduler: the bookkeeping of the step loop. What each step computes, its policy decides."""

from collections.abc import Callable, Iterable, Mapping

from engine.errors import ContextTooLong, IntegrityError, InvalidRequest, RequestTooLarge
from engine.kv_cache.manager import KVCacheManager
from engine.request import FINISHED, RUNNING, FinishReason, Request, RequestStatus
from engine.scheduling.plan import StepPlan
from engine.scheduling.policy import Policy
from engine.scheduling.queues import RunningQueue, WaitingQueue
from engine.scheduling.siblings import Siblings
from engine.scheduling.step_builder import StepBuilder

PLACEHOLDER = -1                                               # a token id that is not known yet


class Scheduler:
    """All unfinished requests, from `add` to `finish`, and the plan of each step.

        add ──> waiting ──admitted──> running ──last token in flight──> ending ──finish──> gone
                   └──────<──preempted────┘└──────────────finish───────────────────────────^

    A step is booked twice: `advance` when it is handed to the runner, so that the next may be planned while it runs;
    `resolve` when its tokens are known. At most a few steps are between the two, and they are resolved in order.

    Stopping is the caller's decision, with one duty: a request that `is_at_limit` after a `resolve` must be
    finished (FinishReason.LENGTH). All others may go on, however small the pool: the first in line can always have the
    blocks of all who run behind it.
    """

    def __init__(
        self, policy: Policy, kv: KVCacheManager, *, max_model_len: int, clock: Callable[[], float]
    ) -> None:
        self.policy = policy
        self.kv = kv
        self.requests: dict[str, Request] = {}                 # request_id -> every unfinished request
        self.waiting = WaitingQueue()
        self.siblings = Siblings()                             # wait for a prompt that another one computes
        self.running = RunningQueue()
        self.ending: dict[str, Request] = {}                   # their last step is in flight: nothing left to schedule
        self.wait_until_s: float | None = None                 # when to plan again, if the last plan was empty
        self.num_uncomputed_tokens = 0                         # of all requests together: the load
        self.num_preemptions = 0
        self.prefix_cache_queries = 0                          # tokens looked up when requests first started
        self.prefix_cache_hits = 0                             # of those, tokens found
        self.max_model_len = max_model_len
        self.max_num_tokens = min(max_model_len, kv.capacity_tokens + 1)    # the last one sampled needs no slot
        self._clock = clock
        self._seats: dict[str, Request] = {}                   # see Policy.keeps_seats
        self._num_added = 0
        self._known_to_runner: set[str] = set()
        self._finished: list[str] = []                         # known to the runner, which must be told

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + len(self.siblings)

    def add(self, request: Request) -> None:
        """Queues `request`. One that could never run is refused with a RequestError, and delays nobody."""
        num_tokens = request.num_tokens
        if request.request_id in self.requests or request.request_id in self._seats:
            raise InvalidRequest(f"a request '{request.request_id}' is already here", param="request_id")
        if num_tokens == 0:
            raise InvalidRequest("the prompt has no tokens", param="prompt")
        if num_tokens + 1 > self.max_model_len:
            raise ContextTooLong(
                f"the prompt has {num_tokens} tokens, which leave no room for an output token;"
                f" the model's context is {self.max_model_len} tokens",
                param="prompt",
            )
        if num_tokens + 1 > self.kv.capacity_tokens:
            raise RequestTooLarge(
                f"the prompt has {num_tokens} tokens, which leave no room for an output token;"
                f" the KV cache holds {self.kv.capacity_tokens} tokens in all",
                param="prompt",
            )
        request.most_tokens = min(request.most_tokens, self.max_num_tokens)
        request.arrival_index = self._num_added
        self._num_added += 1
        self.requests[request.request_id] = request
        self.num_uncomputed_tokens += num_tokens
        first_choice = self.requests.get(request.generation.first_choice_id or "")
        if first_choice is not None and self._has_prompt_to_share(first_choice, request):
            self.siblings.hold(request, first_choice)
        else:
            self.waiting.append(request)

    def schedule(self) -> StepPlan:
        """The next step, as the policy wants it. Empty (`num_tokens` 0) when there is nothing to compute.

        An empty plan carries no news and need not reach the runner; `finished` waits for the next one that is not.
        An id may be in both `finished` and `new`, if a client uses it again: the runner forgets before it learns.
        """
        step = StepBuilder(
            self.waiting,
            self.running,
            {**self._seats, **self.ending} if self.policy.keeps_seats else {},
            self.kv,
            max_num_slots=min(self.max_model_len, self.kv.capacity_tokens),
            max_model_len=self.max_model_len,
            now_s=self._clock(),
        )
        self.policy.plan(step)
        self.wait_until_s = step.wait_until_s
        self._move_requests(step)
        if not step.num_scheduled_tokens:
            return StepPlan(num_scheduled_tokens={}, start={}, block_tables={})
        known = self._known_to_runner
        preempted = tuple(request.request_id for request in step.preempted if request.request_id in known)
        new = {
            request_id: (self.requests[request_id].generation, tuple(self.requests[request_id].token_ids))
            for request_id in step.num_scheduled_tokens
            if request_id not in known
        }
        known.update(new)
        finished, self._finished = self._finished, []
        return StepPlan(
            num_scheduled_tokens=step.num_scheduled_tokens,
            start=step.start,
            block_tables=step.block_tables,
            sampling=tuple(step.sampling),
            new=new,
            padding=step.padding,
            preempted=preempted,
            finished=tuple(finished),
        )

    def _move_requests(self, step: StepBuilder) -> None:
        for request in step.admitted:
            self.waiting.remove(request)
            self.running.add(request)
            self.num_uncomputed_tokens -= request.num_computed_tokens
            if request.first_scheduled_time_s is None:
                request.first_scheduled_time_s = step.now_s
                request.num_cached_tokens = request.num_computed_tokens
                self.prefix_cache_queries += request.num_tokens
                self.prefix_cache_hits += request.num_cached_tokens
        for request in step.preempted:                         # after the admitted: one may be both
            self.running.remove(request)
            self.waiting.push_front(request)
            self.num_uncomputed_tokens += request.num_computed_tokens
            self.num_preemptions += 1
            request.num_computed_tokens = 0
            request.num_preemptions += 1

    def advance(self, plan: StepPlan) -> dict[str, Request]:
        """Books `plan` as if it had been computed: K/V of its tokens, and a placeholder for each token it will sample.

        Returns the requests of the step, for `resolve`: by then their ids may belong to others.
        """
        requests = {request_id: self.requests[request_id] for request_id in plan.num_scheduled_tokens}
        for request, num_tokens in zip(requests.values(), plan.num_scheduled_tokens.values(), strict=True):
            request.num_computed_tokens += num_tokens
        num_placeholders = 0
        for request_id in plan.sampling:
            request = requests[request_id]
            token_ids = request.token_ids
            if len(token_ids) < request.most_tokens:
                token_ids.append(PLACEHOLDER)
                request.num_pending_tokens += 1
                num_placeholders += 1
            if len(token_ids) >= request.most_tokens:
                self.running.remove(request)
                self.ending[request_id] = request
        self.num_uncomputed_tokens += num_placeholders - plan.num_tokens
        return requests

    def resolve(self, plan: StepPlan, requests: Mapping[str, Request], sampled: Mapping[str, int]) -> None:
        """Books what a step that was advanced has found: `sampled` holds the token of each that samples, unless failed.

        `requests` is what `advance` returned; those finished meanwhile are passed over. One whose row failed must be
        finished before, or its K/V would enter the prefix cache.
        """
        block_size, has_siblings = self.kv.block_size, len(self.siblings) > 0
        for request_id, request in requests.items():
            status = request.status
            if status is FINISHED:
                continue
            if request_id in sampled:
                request.token_ids[-request.num_pending_tokens] = sampled[request_id]
                request.num_pending_tokens -= 1
            if status is RUNNING:                # else preempted since, and its blocks are gone
                num_tokens = plan.num_scheduled_tokens[request_id]
                num_committed = plan.start[request_id] + num_tokens
                if num_committed % block_size < num_tokens:    # they have filled a block
                    self.kv.commit(request, num_committed)
                if has_siblings and num_committed >= request.num_prompt_tokens:
                    self._release_siblings(request)

    def _has_prompt_to_share(self, first_choice: Request, request: Request) -> bool:
        """Whether `request` would find more of its prompt in the cache once `first_choice` has computed it."""
        num_shared = (request.num_prompt_tokens - 1) // self.kv.block_size * self.kv.block_size
        is_found = self.kv.prefix_caching and request.sampling.prompt_logprobs is None
        return is_found and first_choice.num_computed_tokens < num_shared

    def _release_siblings(self, first_choice: Request) -> None:
        for request in self.siblings.release(first_choice):
            self.waiting.append(request)

    def finish(self, request_id: str, reason: FinishReason) -> Request | None:
        """Ends a request wherever it is, at any time between two calls. None if it is not here (any more)."""
        request = self.requests.pop(request_id, None)
        if request is None:
            return None
        was_running = request.status is RUNNING
        if self.ending.pop(request_id, None) is None and not self.siblings.remove(request):
            (self.running if was_running else self.waiting).remove(request)
        self._release_siblings(request)
        self.num_uncomputed_tokens -= request.num_uncomputed_tokens
        del request.token_ids[request.num_known_tokens :]      # what is still in flight is dropped
        request.num_pending_tokens = 0
        request.status = RequestStatus.FINISHED
        request.finish_reason = reason
        if was_running and self.policy.keeps_seats and reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._seats[request_id] = request
        else:
            self._release(request)
        if not self.running and not self.ending:
            while self._seats:
                self._release(self._seats.popitem()[1])
        return request

    def _release(self, request: Request) -> None:
        self.kv.free(request)
        if request.request_id in self._known_to_runner:
            self._known_to_runner.remove(request.request_id)
            self._finished.append(request.request_id)

    def check_integrity(self) -> None:
        """Raises IntegrityError unless every request is in exactly one queue and holds exactly what it should."""
        self.kv.check_integrity(live=[*self.requests, *self._seats])
        self._check_queue(self.waiting, RequestStatus.WAITING, RequestStatus.PREEMPTED)
        self._check_queue(self.running, RequestStatus.RUNNING)
        self._check_queue(self.ending.values(), RequestStatus.RUNNING)
        self._check_queue(self.siblings, RequestStatus.WAITING)
        sizes = [self.num_waiting, len(self.running), len(self.ending)]
        if sum(sizes) != len(self.requests):
            raise IntegrityError(f"{sizes} waiting, running and ending are not {len(self.requests)} requests")
        for request in self.waiting:
            if request.num_computed_tokens or self.kv.num_blocks_held(request):
                raise IntegrityError(f"'{request.request_id}' waits and holds blocks")
        for request in self.running:
            if self.kv.num_blocks_held(request) < self.kv.num_blocks_for(request.num_computed_tokens):
                raise IntegrityError(f"'{request.request_id}' has more tokens than its blocks hold")
            if request.num_computed_tokens >= request.num_tokens:
                raise IntegrityError(f"'{request.request_id}' has nothing left to compute")
        for request in self.ending.values():
            if request.max_tokens and not request.num_pending_tokens:
                raise IntegrityError(f"'{request.request_id}' is at its limit and was not finished")
        if sum(r.num_uncomputed_tokens for r in self.requests.values()) != self.num_uncomputed_tokens:
            raise IntegrityError("the count of uncomputed tokens is wrong")

    def _check_queue(self, queue: Iterable[Request], *statuses: RequestStatus) -> None:
        for request in queue:
            if self.requests.get(request.request_id) is not request or request.status not in statuses:
                raise IntegrityError(f"'{request.request_id}' ({request.status}) is in the wrong queue")

"""A scheduler with a stand-in for core and runner, so that a test reads as integers in and integers out."""

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from engine.kv_cache.manager import KVCacheManager
from engine.request import FinishReason, GenerationRequest, Request
from engine.sampling.params import SamplingParams
from engine.scheduling.base import Scheduler
from engine.scheduling.plan import StepPlan
from engine.scheduling.policies import policy_class
from engine.scheduling.policy import Limits, Policy
from tests.helpers import HashRunner, ManualClock

LIMITS = Limits(max_num_batched_tokens=64, max_num_seqs=8)


@dataclass(frozen=True, slots=True)
class InFlight:
    """A step that has been computed, but whose tokens the scheduler has not been told."""

    plan: StepPlan
    requests: Mapping[str, Request]
    sampled: Mapping[str, int]
    failing: Collection[str] = field(default=())


class Driver:
    """Requests named a, b, c, … in order of arrival; a step is what each computed.

    The runner keeps token ids in the slots of a KV cache and checks, before every token that it samples, that the
    request's blocks hold exactly its tokens. With `overlap` a step is planned before the tokens of the last are known.
    """

    def __init__(self, policy: Policy, kv: KVCacheManager, max_model_len: int, overlap: bool = False) -> None:
        self.clock = ManualClock()
        self.kv = kv
        self.scheduler = Scheduler(policy, kv, max_model_len=max_model_len, clock=self.clock)
        self.runner = HashRunner(kv.num_blocks, kv.block_size)
        self.plan = StepPlan(num_scheduled_tokens={}, start={}, block_tables={})
        self.done: dict[str, Request] = {}
        self.stop_after: dict[str, int] = {}               # request_id -> output tokens after which it stops by itself
        self.is_idle = True                                # the last step computed nothing, and told nothing either
        self._num_ahead = int(overlap)
        self._in_flight: deque[InFlight] = deque()
        self._num_added = 0

    def add(
        self,
        prompt: int | Sequence[int],
        max_tokens: int = 100,
        *,
        name: str | None = None,
        priority: int = 0,
        first_choice_id: str | None = None,
        resume: Sequence[int] = (),
        prompt_logprobs: int | None = None,
        tenant: str | None = None,
    ) -> str:
        """`prompt` is its tokens, or how many tokens that no other request has."""
        request_id = name or "abcdefghijklmnopqrstuvwxyz"[self._num_added]
        self._num_added += 1
        if isinstance(prompt, int):
            prompt = range(10_000 * self._num_added, 10_000 * self._num_added + prompt)
        generation = GenerationRequest(
            request_id,
            tuple(prompt),
            SamplingParams(max_tokens=max_tokens, prompt_logprobs=prompt_logprobs),
            priority=priority,
            first_choice_id=first_choice_id,
            tenant=tenant,
            resume_token_ids=tuple(resume),
        )
        self.scheduler.add(Request(generation, self.clock()))
        return request_id

    def step(self, *, abort: Collection[str] = (), failing: Collection[str] = ()) -> dict[str, int]:
        """One step; `abort` ends requests while it runs, the rows of `failing` ones have no next token."""
        scheduler = self.scheduler
        plan = self.plan = scheduler.schedule()
        result = self.runner.execute(plan)
        self._in_flight.append(InFlight(plan, scheduler.advance(plan), result.sampled, failing))
        for request_id in abort:
            self.finish(request_id, FinishReason.ABORT)
        num_ahead = self._num_ahead if plan.num_scheduled_tokens else 0
        self.is_idle = not any(step.plan.num_scheduled_tokens for step in self._in_flight)
        while len(self._in_flight) > num_ahead:
            self._resolve(self._in_flight.popleft())
        scheduler.check_integrity()
        self.clock.now_s += 1
        return dict(plan.num_scheduled_tokens)

    def _resolve(self, step: InFlight) -> None:
        scheduler = self.scheduler
        for request_id in step.failing:
            self.finish(request_id, FinishReason.ERROR)
        here = [name for name, request in step.requests.items() if scheduler.requests.get(name) is request]
        sampled = {name: step.sampled[name] for name in here if name in step.sampled}
        scheduler.resolve(step.plan, step.requests, sampled)
        for name in sampled:
            request = scheduler.requests[name]
            if request.num_output_tokens >= self.stop_after.get(name, request.max_tokens + 1):
                self.finish(name, FinishReason.STOP)
            elif request.is_at_limit:
                self.finish(name, FinishReason.LENGTH)

    def steps(self, count: int) -> list[dict[str, int]]:
        return [self.step() for _ in range(count)]

    def run(self) -> None:
        """Steps until every request has ended. Fails if a step computes nothing, unless the policy waits for others."""
        while self.scheduler.requests:
            self.step()
            assert not self.is_stuck, f"stuck: {list(self.scheduler.requests)}"

    @property
    def is_stuck(self) -> bool:
        """Whether the last step did nothing for the requests there are, and its policy was not waiting for others."""
        until_s = self.scheduler.wait_until_s
        is_waiting = until_s is not None and until_s > self.clock.now_s - 1
        return self.is_idle and bool(self.scheduler.requests) and not is_waiting

    @property
    def num_rows(self) -> int:
        """Rows that the last step computed, those that were discarded included."""
        return self.plan.num_tokens + sum(self.plan.padding.values())

    def finish(self, request_id: str, reason: FinishReason = FinishReason.STOP) -> None:
        request = self.scheduler.finish(request_id, reason)
        if request is not None:
            self.done[request_id] = replace(request)

    def request(self, request_id: str) -> Request:
        return self.scheduler.requests[request_id]

    def block_table(self, request_id: str) -> tuple[int, ...]:
        return self.kv.block_table(self.request(request_id))

    def output(self, request_id: str) -> list[int]:
        request = self.done.get(request_id) or self.request(request_id)
        return request.token_ids[request.num_prompt_tokens :]

    @property
    def seats(self) -> set[str]:
        """Requests that have nothing left to compute but hold their blocks."""
        done = {name for name, request in self.done.items() if self.kv.num_blocks_held(request)}
        return done | self.scheduler.ending.keys()

    @property
    def running(self) -> list[str]:
        return [request.request_id for request in self.scheduler.running]

    @property
    def waiting(self) -> list[str]:
        return [request.request_id for request in self.scheduler.waiting]


def scheduler(
    policy: str | type[Policy] = "chunked",
    *,
    num_blocks: int = 100,
    block_size: int = 4,
    max_model_len: int = 10_000,
    prefix_caching: bool = True,
    overlap: bool = False,
    **parameters: object,
) -> Driver:
    kind = policy_class(policy) if isinstance(policy, str) else policy
    if policy == "chunked":
        parameters = {"watermark": 0.0, **parameters}
    kv = KVCacheManager(num_blocks, block_size, prefix_caching=prefix_caching)
    return Driver(kind(kind.Parameters(**parameters), LIMITS), kv, max_model_len, overlap)

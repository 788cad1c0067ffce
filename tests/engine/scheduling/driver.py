"""A scheduler with a stand-in for core and runner, so that a test reads as integers in and integers out."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from engine.kv_cache.manager import KVCacheManager
from engine.request import FinishReason, GenerationRequest, Request
from engine.sampling.params import SamplingParams
from engine.scheduling.base import Scheduler
from engine.scheduling.plan import StepPlan
from engine.scheduling.policies import policy_class
from engine.scheduling.policy import Limits, Policy
from tests.helpers import HashRunner, ManualClock

LIMITS = Limits(max_num_batched_tokens=64, max_num_seqs=8)


class Driver:
    """Requests named a, b, c, … in order of arrival; a step is what each computed.

    The runner keeps token ids in the slots of a KV cache and checks, before every token that it samples, that the
    request's blocks hold exactly its tokens.
    """

    def __init__(self, policy: Policy, kv: KVCacheManager, max_model_len: int) -> None:
        self.clock = ManualClock()
        self.kv = kv
        self.scheduler = Scheduler(policy, kv, max_model_len=max_model_len, clock=self.clock)
        self.runner = HashRunner(kv.num_blocks, kv.block_size)
        self.plan = StepPlan(num_scheduled_tokens={}, start={}, block_tables={})
        self.done: dict[str, Request] = {}
        self._num_added = 0

    def add(
        self,
        prompt: int | Sequence[int],
        max_tokens: int = 100,
        *,
        name: str | None = None,
        priority: int = 0,
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
        requests = scheduler.advance(plan)
        for request_id in abort:
            self.finish(request_id, FinishReason.ABORT)
        for request_id in failing:
            self.finish(request_id, FinishReason.ERROR)
        sampled = {request_id: token for request_id, token in result.sampled.items() if request_id not in failing}
        scheduler.resolve(plan, requests, sampled)
        for request_id in sampled:
            request = scheduler.requests.get(request_id)
            if request and (request.num_output_tokens >= request.max_tokens or scheduler.is_at_limit(request)):
                self.finish(request_id, FinishReason.LENGTH)
        scheduler.check_integrity()
        self.clock.now_s += 1
        return dict(plan.num_scheduled_tokens)

    def steps(self, count: int) -> list[dict[str, int]]:
        return [self.step() for _ in range(count)]

    def run(self) -> None:
        """Steps until every request has ended. Fails if a step computes nothing, unless the policy waits for others."""
        while self.scheduler.requests:
            assert self.step() or self.is_held_back, f"stuck: {list(self.scheduler.requests)}"

    @property
    def is_held_back(self) -> bool:
        """Whether the last step computed nothing because its policy waits, for a time not over when it was planned."""
        until_s = self.scheduler.wait_until_s
        return not self.plan.num_scheduled_tokens and until_s is not None and until_s > self.clock.now_s - 1

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
    **parameters: object,
) -> Driver:
    kind = policy_class(policy) if isinstance(policy, str) else policy
    if policy == "chunked":
        parameters = {"watermark": 0.0, **parameters}
    kv = KVCacheManager(num_blocks, block_size, prefix_caching=prefix_caching)
    return Driver(kind(kind.Parameters(**parameters), LIMITS), kv, max_model_len)

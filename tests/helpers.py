"""Small stand-ins shared by tests: a runner without tensors, a clock that is told the time."""

import hashlib
from collections.abc import Callable, Mapping, Sequence

from engine.request import GenerationRequest
from engine.sampling.params import SamplingParams
from engine.scheduling.plan import Done, StepPlan, StepResult


class ManualClock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def next_token(token_ids: Sequence[int], vocab_size: int = 1000) -> int:
    """A token that depends on every token before it, as a model's does."""
    digest = hashlib.blake2b(repr(list(token_ids)).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % vocab_size


class HashRunner:
    """A runner whose tokens depend on what the KV cache holds: it stores token ids in slots and reads them back.

    A wrong block table, a stale block or a lost token therefore changes the output.
    """

    def __init__(
        self, num_blocks: int, block_size: int, choose: Callable[[Sequence[int]], int] = next_token
    ) -> None:
        self.block_size = block_size
        self.slots: list[int | None] = [None] * (num_blocks * block_size)
        self.tokens: dict[str, list[int]] = {}
        self.choose = choose
        self.plans: list[StepPlan] = []

    def execute(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        for request_id in plan.finished:
            self.tokens.pop(request_id, None)
        for request_id, (_, token_ids) in plan.new.items():
            self.tokens[request_id] = list(token_ids)
        for request_id, count in plan.num_scheduled_tokens.items():
            start, table = plan.start[request_id], plan.block_tables[request_id]
            for position in range(start, start + count):
                slot = table[position // self.block_size] * self.block_size + position % self.block_size
                self.slots[slot] = self.tokens[request_id][position]
        sampled = {request_id: self.choose(self._context(plan, request_id)) for request_id in plan.sampling}
        for request_id, token_id in sampled.items():
            self.tokens[request_id].append(token_id)
        return StepResult(sampled)

    def submit(self, plan: StepPlan) -> Done:
        return Done(self.execute(plan))

    def _context(self, plan: StepPlan, request_id: str) -> list[int]:
        table = plan.block_tables[request_id]
        length = plan.start[request_id] + plan.num_scheduled_tokens[request_id]
        context = [
            self.slots[table[position // self.block_size] * self.block_size + position % self.block_size]
            for position in range(length)
        ]
        assert context == self.tokens[request_id], f"the cache of {request_id} does not hold its tokens"
        return [token for token in context if token is not None]


def expected_tokens(prompt: Sequence[int], count: int) -> list[int]:
    """What HashRunner must produce for `prompt`, whatever else runs beside it."""
    token_ids = list(prompt)
    for _ in range(count):
        token_ids.append(next_token(token_ids))
    return token_ids[len(prompt) :]


def generation(
    request_id: str,
    prompt: Sequence[int],
    max_tokens: int = 16,
    sampling: Mapping[str, object] | None = None,
    **fields: object,
) -> GenerationRequest:
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, **(sampling or {}))  # type: ignore[arg-type]
    return GenerationRequest(request_id, tuple(prompt), params, **fields)  # type: ignore[arg-type]

"""Random traffic through tiny pools, with every policy: nothing lost, starved or oversubscribed, every token right."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import ContextTooLong, RequestTooLarge
from engine.request import FinishReason
from engine.scheduling.policies import policy_names
from tests.engine.scheduling.driver import Driver, scheduler
from tests.engine.scheduling.rules import MAX_OUTPUT, MAX_PROMPT, RULES, Before, Check, Rules
from tests.helpers import expected_tokens

LAST_ARRIVAL = 30                                     # step


@dataclass(frozen=True)
class Arrival:
    prompt: tuple[int, ...]
    max_tokens: int
    stop_after: int | None                            # output tokens, if it ends by itself
    priority: int
    tenant: str | None
    step: int                                         # when it arrives
    abort_step: int | None                            # when its client goes away
    abort_in_flight: bool                             # while that step runs, not before it
    prompt_logprobs: int | None


# Two tokens and repetition: many prompts share prefixes, some are equal.
prompts = st.tuples(st.sampled_from([(0,), (0, 1), (0, 0, 1)]), st.integers(1, MAX_PROMPT)).map(
    lambda pattern: (pattern[0] * pattern[1])[: pattern[1]]
)
arrivals = st.builds(
    Arrival,
    prompt=prompts,
    max_tokens=st.integers(1, MAX_OUTPUT).map(lambda number: MAX_OUTPUT + 1 - number),   # long ones are the simple ones
    stop_after=st.one_of(st.none(), st.none(), st.integers(1, MAX_OUTPUT)),
    priority=st.sampled_from([0, 0, 0, 1, -1]),
    tenant=st.sampled_from([None, "a", "b"]),
    step=st.one_of(st.integers(0, 3), st.integers(0, LAST_ARRIVAL)),
    abort_step=st.one_of(st.none(), st.none(), st.none(), st.integers(0, 60)),
    abort_in_flight=st.booleans(),
    prompt_logprobs=st.sampled_from([None, None, None, 0]),
)
# Mostly for two or three requests at once.
pools = st.builds(
    lambda capacity, block_size, **others: {
        "num_blocks": max(1, capacity // block_size), "block_size": block_size, **others
    },
    capacity=st.one_of(st.integers(50, 150), st.integers(1, 300)),
    block_size=st.sampled_from([1, 2, 4, 5, 16]),
    max_model_len=st.sampled_from([1000, 64, 20]),
    prefix_caching=st.booleans(),
    overlap=st.booleans(),
)  # fmt: skip


def rules_of(policy: str) -> Rules:
    if policy not in RULES:
        pytest.fail(f"policy '{policy}' has no entry in RULES of tests/engine/scheduling/rules.py: give it one")
    return RULES[policy]


@pytest.mark.parametrize("policy", policy_names())
def test_every_request_ends_with_its_own_tokens(policy: str):
    run_examples(policy, 40)


@pytest.mark.exhaustive
@pytest.mark.parametrize("policy", policy_names())
def test_every_request_ends_with_its_own_tokens_in_many_more_examples(policy: str):
    run_examples(policy, 500)


def run_examples(policy: str, max_examples: int) -> None:
    rules = rules_of(policy)

    @settings(max_examples=max_examples, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    @given(pools, st.fixed_dictionaries(dict(rules.parameters)), st.lists(arrivals, min_size=4, max_size=12))
    def run(pool: dict[str, Any], parameters: dict[str, Any], traffic: list[Arrival]) -> None:
        engine = scheduler(policy, **pool, **parameters)
        patience = work(traffic) if rules.patience is None else rules.patience
        accepted = serve(engine, traffic, rules.checks, Line(patience + pool["overlap"]))   # ends are seen a step late
        check_ends(engine, accepted)

    run()


def serve(engine: Driver, traffic: Sequence[Arrival], checks: Sequence[Check], line: "Line") -> dict[str, Arrival]:
    """Runs `traffic` to its end, checking every step. Returns the requests that were not refused, by their names."""
    accepted: dict[str, Arrival] = {}
    now = 0
    while engine.scheduler.requests or now <= LAST_ARRIVAL:
        for number, arrival in enumerate(traffic):
            if arrival.step == now and add(engine, str(number), arrival):
                accepted[str(number)] = arrival
        leaving = {name: arrival for name, arrival in accepted.items() if arrival.abort_step == now}
        for name, arrival in leaving.items():
            if not arrival.abort_in_flight:
                engine.finish(name, FinishReason.ABORT)
        before, head = Before.of(engine), first_in_line(engine)
        scheduled = engine.step(abort=[name for name, arrival in leaving.items() if arrival.abort_in_flight])
        assert not engine.is_stuck, f"nothing was computed for {list(engine.scheduler.requests)}"
        line.passed_over(head, scheduled)
        check_plan(engine)
        for check in checks:
            check(engine, before)
        now += 1
    return accepted


def add(engine: Driver, name: str, arrival: Arrival) -> bool:
    try:
        engine.add(
            arrival.prompt,
            arrival.max_tokens,
            name=name,
            priority=arrival.priority,
            tenant=arrival.tenant,
            prompt_logprobs=arrival.prompt_logprobs,
        )
    except (RequestTooLarge, ContextTooLong):
        assert len(arrival.prompt) + 1 > min(engine.kv.capacity_tokens, engine.scheduler.max_model_len)
        return False
    if arrival.stop_after is not None:
        engine.stop_after[name] = arrival.stop_after
    return True


def first_in_line(engine: Driver) -> str | None:
    """The request that everyone else should wait for, if anyone must. Its last step is not in flight."""
    here = [*engine.scheduler.running, *engine.scheduler.waiting]
    return min(here, key=lambda r: (r.priority, r.arrival_index)).request_id if here else None


class Line:
    """Counts the steps that pass over the first in line."""

    def __init__(self, patience: int) -> None:
        self._patience = patience
        self._head: str | None = None
        self._count = 0

    def passed_over(self, head: str | None, scheduled: dict[str, int]) -> None:
        self._count = 0 if head != self._head or head in scheduled else self._count
        self._head = head
        if head is not None and head not in scheduled:
            self._count += 1
            assert self._count <= self._patience, f"'{head}' was passed over {self._count} times"


def work(traffic: Sequence[Arrival]) -> int:
    """Steps for all of `traffic` one by one, a token a step, twice: some of it may be recomputed."""
    return LAST_ARRIVAL + 2 * sum(len(arrival.prompt) + arrival.max_tokens for arrival in traffic)


def check_plan(engine: Driver) -> None:
    plan, limits = engine.plan, engine.scheduler.policy.limits
    num_prompts = sum(count > 1 for count in plan.num_scheduled_tokens.values())
    assert engine.num_rows <= limits.max_num_batched_tokens or num_prompts == 1   # which may be longer than the limit
    assert len(plan.block_tables) <= limits.max_num_seqs
    assert len(engine.running) <= limits.max_num_seqs
    written: set[int] = set()
    for request_id, count in plan.num_scheduled_tokens.items():
        assert count >= 1
        start, table, block_size = plan.start[request_id], plan.block_tables[request_id], engine.kv.block_size
        blocks = {table[position // block_size] for position in range(start, start + count)}
        assert not blocks & written, "two requests write to one block"
        written |= blocks
    for request_id, count in plan.padding.items():
        assert count >= 1
        if request_id not in plan.num_scheduled_tokens or plan.start[request_id] == 0:   # else behind a cached prefix
            end = plan.start[request_id] + plan.num_scheduled_tokens.get(request_id, 0) + count
            assert end <= len(plan.block_tables[request_id]) * engine.kv.block_size


def check_ends(engine: Driver, accepted: dict[str, Arrival]) -> None:
    assert engine.kv.num_used_blocks == 0
    assert engine.scheduler.num_uncomputed_tokens == 0
    assert engine.done.keys() == accepted.keys()
    for name, arrival in accepted.items():
        output = engine.output(name)
        assert output == expected_tokens(arrival.prompt, len(output))
        reason = engine.done[name].finish_reason
        if reason is FinishReason.STOP:
            assert len(output) == arrival.stop_after
        elif reason is FinishReason.LENGTH:
            assert len(output) == min(arrival.max_tokens, engine.scheduler.max_num_tokens - len(arrival.prompt))
        else:
            assert arrival.abort_step is not None


def test_outputs_are_the_same_with_every_policy_and_pool():
    """Like for like: what policies differ in is time alone."""
    batch = [tuple((number * 7 + place) % 3 for place in range(1 + 11 * number % 35)) for number in range(9)]
    outputs: dict[str, list[list[int]]] = {}
    for policy in policy_names():
        for num_blocks in (13, 1000):
            for overlap in (False, True):
                engine = scheduler(policy, num_blocks=num_blocks, overlap=overlap)
                for number, prompt in enumerate(batch):
                    engine.add(prompt, 5 + number, name=str(number))
                engine.run()
                key = f"{policy}, {num_blocks} blocks, overlap {overlap}"
                outputs[key] = [engine.output(str(number)) for number in range(len(batch))]
    expected = [expected_tokens(prompt, 5 + number) for number, prompt in enumerate(batch)]
    assert {key: output for key, output in outputs.items() if output != expected} == {}

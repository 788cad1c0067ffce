"""Random traffic through tiny pools: nothing lost, nothing starved, nothing oversubscribed, every token right."""

from collections import defaultdict
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import ContextTooLong, RequestTooLarge
from engine.request import FinishReason
from engine.scheduling.policies.chunked import Chunked
from tests.engine.scheduling.driver import Driver, scheduler
from tests.helpers import expected_tokens


@dataclass(frozen=True)
class Arrival:
    prompt: tuple[int, ...]
    max_tokens: int
    priority: int
    step: int                                         # when it arrives
    abort_step: int | None                            # when its client goes away
    abort_in_flight: bool                             # while that step runs, not before it
    prompt_logprobs: int | None


# Two tokens and repetition: many prompts share prefixes, some are equal.
prompts = st.tuples(st.sampled_from([(0,), (0, 1), (0, 0, 1)]), st.integers(1, 40)).map(
    lambda pattern: (pattern[0] * pattern[1])[: pattern[1]]
)
arrivals = st.builds(
    Arrival,
    prompt=prompts,
    max_tokens=st.integers(1, 30),
    priority=st.sampled_from([0, 0, 0, 1, -1]),
    step=st.integers(0, 30),
    abort_step=st.one_of(st.none(), st.none(), st.integers(0, 60)),
    abort_in_flight=st.booleans(),
    prompt_logprobs=st.sampled_from([None, None, None, 0]),
)
settings_of_pool = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(1, 24),
        "block_size": st.sampled_from([1, 2, 4, 5, 16]),
        "max_model_len": st.sampled_from([20, 64, 1000]),
        "prefix_caching": st.booleans(),
        "max_num_batched_tokens": st.sampled_from([1, 2, 7, 64]),
        "max_num_seqs": st.sampled_from([1, 2, 5, 64]),
        "long_prefill_token_threshold": st.sampled_from([0, 0, 3]),
        "watermark": st.sampled_from([0.0, 0.01, 0.3]),
    }
)


def first_in_line(engine: Driver) -> str | None:
    requests = engine.scheduler.requests.values()
    return min(requests, key=lambda r: (r.priority, r.arrival_index)).request_id if requests else None


def check_order(engine: Driver) -> None:
    """Within a priority everyone who runs came before everyone who waits."""
    running: dict[int, list[int]] = defaultdict(list)
    for request in engine.scheduler.running:
        running[request.priority].append(request.arrival_index)
    for request in engine.scheduler.waiting:
        assert all(index < request.arrival_index for index in running[request.priority])


def check_plan(engine: Driver) -> None:
    plan, policy = engine.plan, engine.scheduler.policy
    assert isinstance(policy, Chunked)
    assert plan.num_tokens <= policy.max_num_batched_tokens
    assert len(engine.running) <= policy.max_num_seqs
    written: set[int] = set()
    for request_id, count in plan.num_scheduled_tokens.items():
        assert count >= 1
        start, table, block_size = plan.start[request_id], plan.block_tables[request_id], engine.kv.block_size
        blocks = {table[position // block_size] for position in range(start, start + count)}
        assert not blocks & written, "two requests write to one block"
        written |= blocks


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(settings_of_pool, st.lists(arrivals, min_size=1, max_size=12))
def test_every_request_ends_with_its_own_tokens(pool: dict[str, int], traffic: list[Arrival]):
    engine = scheduler(**pool)
    accepted: dict[str, Arrival] = {}
    now = 0
    while engine.scheduler.requests or now <= 30:
        for number, arrival in enumerate(traffic):
            if arrival.step == now:
                try:
                    accepted[engine.add(arrival.prompt, name=str(number), **options(arrival))] = arrival
                except (RequestTooLarge, ContextTooLong):
                    assert len(arrival.prompt) + 1 > min(engine.kv.capacity_tokens, pool["max_model_len"])
        leaving = {name: arrival for name, arrival in accepted.items() if arrival.abort_step == now}
        for name, arrival in leaving.items():
            if not arrival.abort_in_flight:
                engine.finish(name, FinishReason.ABORT)
        head = first_in_line(engine)
        scheduled = engine.step(abort=[name for name, arrival in leaving.items() if arrival.abort_in_flight])
        assert head is None or head in scheduled, "the first in line was passed over"
        check_plan(engine)
        check_order(engine)
        now += 1
    assert engine.kv.num_used_blocks == 0
    assert engine.scheduler.num_uncomputed_tokens == 0
    assert engine.done.keys() == accepted.keys()
    for name, arrival in accepted.items():
        output = engine.output(name)
        assert output == expected_tokens(arrival.prompt, len(output))
        if engine.done[name].finish_reason is FinishReason.LENGTH:
            room = engine.scheduler.max_num_tokens - len(arrival.prompt)
            assert len(output) == min(arrival.max_tokens, room)


def options(arrival: Arrival) -> dict[str, int | None]:
    return {
        "max_tokens": arrival.max_tokens,
        "priority": arrival.priority,
        "prompt_logprobs": arrival.prompt_logprobs,
    }


@settings(max_examples=100, deadline=None, derandomize=True)
@given(settings_of_pool, st.lists(prompts, min_size=2, max_size=8), st.integers(1, 20))
def test_outputs_do_not_depend_on_the_pool(pool: dict[str, int], batch: list[tuple[int, ...]], max_tokens: int):
    small = scheduler(**{**pool, "num_blocks": 60 // pool["block_size"] + 1, "max_model_len": 1000})
    roomy = scheduler(num_blocks=1000)
    for engine in (small, roomy):
        for number, prompt in enumerate(batch):
            engine.add(prompt, max_tokens, name=str(number))
        engine.run()
    assert all(small.output(str(number)) == roomy.output(str(number)) for number in range(len(batch)))

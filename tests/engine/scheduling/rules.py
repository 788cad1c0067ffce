"""What the property tests must be told of each policy: parameters to try, and what holds of its steps.

A new policy needs an entry in RULES.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from engine.request import Request
from tests.engine.scheduling.driver import Driver

MAX_PROMPT, MAX_OUTPUT = 40, 30                   # of the random requests


@dataclass(frozen=True, slots=True)
class Before:
    """The requests as they were when a step was planned."""

    decoding: frozenset[str]                      # running, with nothing but their newest token to compute
    running: frozenset[str]
    seats: frozenset[str]

    @classmethod
    def of(cls, engine: Driver) -> "Before":
        running = list(engine.scheduler.running)
        decoding = [r for r in running if r.num_uncomputed_tokens == 1 and r.num_tokens > r.num_prompt_tokens]
        return cls(_names(decoding), _names(running), frozenset(engine.seats))


def _names(requests: list[Request]) -> frozenset[str]:
    return frozenset(request.request_id for request in requests)


Check = Callable[[Driver, Before], None]


@dataclass(frozen=True, slots=True)
class Rules:
    """`patience`: most steps in a row in which the first in line, by priority and arrival, computes nothing.

    None: the policy has no bound but the work of all others.
    """

    parameters: Mapping[str, st.SearchStrategy[Any]]
    patience: int | None = None
    checks: tuple[Check, ...] = field(default=())


def one_of(*values: object) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)


# Checks


def never_preempts(engine: Driver, before: Before) -> None:
    assert engine.scheduler.num_preemptions == 0


def in_order_within_a_priority(engine: Driver, before: Before) -> None:
    """Everyone who runs came before everyone of the same priority who waits."""
    last = {request.priority: request.arrival_index for request in engine.scheduler.running}   # which is sorted
    for request in engine.scheduler.waiting:
        assert last.get(request.priority, -1) < request.arrival_index


def prompts_apart_from_decodes(engine: Driver, before: Before) -> None:
    scheduled = engine.plan.num_scheduled_tokens.keys()
    assert scheduled <= before.decoding or not scheduled & before.decoding


def every_decode_in_every_step(engine: Driver, before: Before) -> None:
    preempted = before.decoding - set(engine.running) - engine.seats     # and ended, perhaps, since
    assert before.decoding - preempted <= engine.plan.num_scheduled_tokens.keys()


def one_token_each(engine: Driver, before: Before) -> None:
    assert set(engine.plan.num_scheduled_tokens.values()) <= {1}


def prompts_whole(engine: Driver, before: Before) -> None:
    assert engine.plan.num_scheduled_tokens.keys() == set(engine.plan.sampling)


def prompts_cut_to_the_limit(engine: Driver, before: Before) -> None:
    assert engine.plan.num_tokens <= engine.scheduler.policy.limits.max_num_batched_tokens


def nobody_joins_a_batch(engine: Driver, before: Before) -> None:
    assert before.running <= engine.plan.num_scheduled_tokens.keys()
    assert not engine.plan.new or not (before.running or before.seats)


def no_rows_but_live_ones(engine: Driver, before: Before) -> None:
    assert not engine.plan.padding


def as_many_rows_for_every_seat(engine: Driver, before: Before) -> None:
    """Members and seats of finished ones: in each step all have the same number of rows."""
    plan = engine.plan
    rows = {name: plan.num_scheduled_tokens.get(name, 0) + plan.padding.get(name, 0) for name in plan.block_tables}
    assert len(set(rows.values())) <= 1
    if plan.num_tokens:
        assert before.seats <= rows.keys()


def maximum_within(parameter: str) -> Check:
    """prompt + max_tokens of all that run keep the budget of that name, or one runs alone."""

    def check(engine: Driver, before: Before) -> None:
        budget = getattr(engine.scheduler.policy, parameter) or engine.kv.capacity_tokens
        limit = engine.scheduler.max_model_len
        running = [min(r.num_prompt_tokens + r.max_tokens, limit) for r in engine.scheduler.running]
        assert sum(running) <= budget or len(running) == 1

    return check


# The table

RESERVE = {"reserve": one_of("request", "request", "max_model_len")}
BATCH = {**RESERVE, "batch_size": one_of(1, 2, 5, 64), "max_prompt_rows": one_of(None, None, 1, 50)}
TURNS = {"waiting_served_ratio": one_of(0, 0.3, 1.2, 5), "max_waiting_tokens": one_of(0, 1, 20)}
MAX_NUM_SEQS = {"max_num_seqs": one_of(1, 2, 5, 64)}
CHUNKS = {
    **MAX_NUM_SEQS,
    "max_num_batched_tokens": one_of(1, 2, 7, 64),
    "long_prefill_token_threshold": one_of(0, 0, 3),
    "watermark": one_of(0.0, 0.01, 0.3),
}
INFLIGHT = {
    "max_num_tokens": one_of(1, 7, 64),
    "max_batch_size": one_of(None, 1, 5),
    "enable_chunked_context": st.booleans(),
}
PADDED_BATCH = (never_preempts, prompts_whole, nobody_joins_a_batch, as_many_rows_for_every_seat)
SLACK = 4                                         # prompts, pauses, and ends that are seen late

RULES: dict[str, Rules] = {
    "static": Rules(
        {**BATCH, "queue_end_ms": one_of(0, 100, 2500)},
        MAX_OUTPUT + 12 * 3 + SLACK,                       # the last batch, and twelve arrivals that put off the next
        (*PADDED_BATCH, in_order_within_a_priority),
    ),
    "static_impatient": Rules(
        {**BATCH, "max_wait_ms": one_of(0, 100, 2500)},
        MAX_OUTPUT + 3 + SLACK,
        (*PADDED_BATCH, in_order_within_a_priority),
    ),
    "packed_static": Rules(
        {**BATCH, "queue_end_ms": one_of(0, 100, 2500)},
        MAX_OUTPUT + 12 * 3 + SLACK,
        (never_preempts, prompts_whole, nobody_joins_a_batch, no_rows_but_live_ones, in_order_within_a_priority),
    ),
    "turbo": Rules(
        {**BATCH, "window": one_of(1, 3, 64), "cost_per_batch": one_of(0, 10, 1000)},
        MAX_OUTPUT + SLACK,
        PADDED_BATCH,
    ),
    "cellular": Rules(
        MAX_NUM_SEQS,
        MAX_PROMPT + MAX_OUTPUT + SLACK,
        (one_token_each, prompts_cut_to_the_limit, every_decode_in_every_step, in_order_within_a_priority),
    ),
    "orca": Rules(
        {**RESERVE, **MAX_NUM_SEQS},
        MAX_OUTPUT + SLACK,
        (never_preempts, prompts_whole, every_decode_in_every_step, in_order_within_a_priority),
    ),
    "tgi": Rules(
        {
            **RESERVE,
            **TURNS,
            "max_batch_prefill_tokens": one_of(1, 20, 64),
            "max_batch_total_tokens": one_of(None, 1, 50),
        },
        MAX_OUTPUT + SLACK,
        (
            never_preempts,
            prompts_whole,
            prompts_apart_from_decodes,
            maximum_within("max_batch_total_tokens"),
            in_order_within_a_priority,
        ),
    ),
    "ray_serve_2023": Rules(
        {**TURNS, "max_batch_total_tokens": one_of(None, 1, 50, 1000)},
        MAX_OUTPUT + SLACK,
        (
            prompts_whole,
            prompts_apart_from_decodes,
            maximum_within("max_batch_total_tokens"),
            in_order_within_a_priority,
        ),
    ),
    "vllm_v0": Rules(
        {**MAX_NUM_SEQS, "max_num_batched_tokens": one_of(1, 7, 64), "watermark": one_of(0.0, 0.01, 0.3)},
        checks=(prompts_apart_from_decodes, prompts_cut_to_the_limit, in_order_within_a_priority),
    ),
    "chunked": Rules(CHUNKS, 0, (prompts_cut_to_the_limit, in_order_within_a_priority)),
    "splitfuse": Rules(
        {"token_budget": one_of(1, 2, 7, 64), "max_ragged_sequence_count": one_of(1, 2, 5, 64)},
        checks=(every_decode_in_every_step, prompts_cut_to_the_limit, in_order_within_a_priority),
    ),
    "lightllm": Rules(
        {
            "max_total_token_num": one_of(None, 1, 50),
            "router_token_ratio": one_of(0.0, 0.5, 1.0),
            "router_max_new_token_len": one_of(1, 10, 1024),
            "chunked_prefill_size": one_of(0, 1, 7, 64),
            "running_max_req_size": one_of(None, 1, 5),
        },
        checks=(prompts_apart_from_decodes, in_order_within_a_priority),
    ),
    "trtllm_no_evict": Rules(
        {**INFLIGHT, **RESERVE},
        checks=(never_preempts, every_decode_in_every_step, prompts_cut_to_the_limit, in_order_within_a_priority),
    ),
    "trtllm_max_utilization": Rules(
        INFLIGHT,
        checks=(every_decode_in_every_step, prompts_cut_to_the_limit, in_order_within_a_priority),
    ),
    "sglang": Rules(
        {
            "schedule_policy": one_of("lpm", "fcfs"),
            "chunked_prefill_size": one_of(1, 7, 64),
            "max_running_requests": one_of(None, 1, 5),
            "init_new_token_ratio": one_of(0.0, 0.7, 1.0),
            "new_token_ratio_decay_steps": one_of(1, 600),
            "clip_max_new_tokens": one_of(1, 4096),
        },
        checks=(prompts_apart_from_decodes,),
    ),
    "fair": Rules({**CHUNKS, "weights": one_of({}, {"a": 5.0, "b": 0.1})}, checks=(prompts_cut_to_the_limit,)),
}

"""What a simulation tells: arrivals in, a record of each request and of each step out."""

from dataclasses import dataclass

from engine.scheduling.base import Scheduler
from engine.scheduling.plan import StepPlan


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request to come. It ends after `output_len` tokens, whatever it was allowed."""

    prompt_len: int
    output_len: int
    arrival_s: float = 0.0
    max_tokens: int | None = None                  # what it asks for, and policies reserve; None: `output_len`
    tenant: str | None = None
    priority: int = 0
    prompt_token_ids: tuple[int, ...] | None = None   # None: ids that no other request has
    request_id: str | None = None                  # None: its number in the order of arrival


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """How one request fared. Times are seconds since the start of the simulation."""

    request_id: str
    arrival: Arrival
    first_scheduled_s: float | None                # None: refused, `error` says why
    token_times_s: tuple[float, ...]               # when each output token was there
    end_s: float
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    error: str | None = None

    @property
    def num_output_tokens(self) -> int:
        return len(self.token_times_s)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What one step computed and what the engine held while it did."""

    index: int
    begun_s: float
    duration_s: float
    num_prefill_tokens: int                        # those recomputed after a preemption too
    num_decode_tokens: int
    num_padding_rows: int                          # computed and discarded
    num_idle_seats: int                            # finished members whose rows it computed all the same
    num_running: int
    num_waiting: int
    num_used_blocks: int
    num_unused_blocks: int                         # of those: set aside, without a token in them after this step


def step_record(
    index: int, scheduler: Scheduler, plan: StepPlan, begun_s: float, ended_s: float
) -> StepRecord:
    """The record of a step that has been resolved and whose ends have not been booked yet.

    Takes time for each running request.
    """
    samples = frozenset(plan.sampling)
    num_decode_tokens = sum(
        1
        for request_id, num_tokens in plan.num_scheduled_tokens.items()
        if num_tokens == 1
        and request_id in samples
        and plan.start[request_id] >= scheduler.requests[request_id].num_prompt_tokens
    )
    kv = scheduler.kv
    running = [*scheduler.running, *scheduler.ending.values()]
    num_filled = sum(kv.num_blocks_for(request.num_computed_tokens) for request in running)
    num_held = sum(kv.num_blocks_held(request) for request in running)
    return StepRecord(
        index=index,
        begun_s=begun_s,
        duration_s=ended_s - begun_s,
        num_prefill_tokens=plan.num_tokens - num_decode_tokens,
        num_decode_tokens=num_decode_tokens,
        num_padding_rows=sum(plan.padding.values()),
        num_idle_seats=len(plan.padding.keys() - plan.num_scheduled_tokens.keys()),
        num_running=len(running),
        num_waiting=len(scheduler.waiting),
        num_used_blocks=kv.num_used_blocks,
        num_unused_blocks=num_held - num_filled,
    )

"""Replays of the tiny model on a device where a step takes about a thousand seconds."""

from itertools import pairwise

import pytest

from engine.scheduling.policies import policy_names
from engine.scheduling.policy import Policy
from engine.simulation.engine import SimulatedEngine
from engine.simulation.records import Arrival, StepRecord
from engine.simulation.replay import replay
from tests.engine.simulation.driver import COST, engine, traffic


class Fixed:
    """A step that computes anything takes ten seconds."""

    def step_s(self, rows):
        return 10.0


def test_one_request_step_by_step():
    steps: list[StepRecord] = []
    summary = replay(engine(cost=Fixed()), [Arrival(6, 3, arrival_s=5.0)], on_step=steps.append)
    (record,) = summary.records
    assert record.first_scheduled_s == 5.0             # an idle engine waits for it
    assert record.token_times_s == (15.0, 25.0, 35.0)
    assert (record.end_s, summary.duration_s, summary.num_steps) == (35.0, 35.0, 3)
    tokens = [(step.begun_s, step.num_prefill_tokens, step.num_decode_tokens) for step in steps]
    assert tokens == [(5, 6, 0), (15, 0, 1), (25, 0, 1)]
    assert [(s.num_used_blocks, s.num_unused_blocks) for s in steps] == [(2, 0), (2, 0), (2, 0)]


def test_a_request_is_seen_by_the_first_step_after_its_arrival():
    arrivals = [Arrival(4, 3), Arrival(4, 2, arrival_s=10.0), Arrival(4, 1, arrival_s=10.1)]
    summary = replay(engine(cost=Fixed()), arrivals)
    times = {record.request_id: (record.first_scheduled_s, record.token_times_s) for record in summary.records}
    assert times == {"0": (0, (10, 20, 30)), "1": (10, (20, 30)), "2": (20, (30,))}


def test_a_request_ends_at_its_output_however_much_it_asked_for():
    summary = replay(engine(), [Arrival(4, 3, max_tokens=50)])
    assert summary.num_output_tokens == 3
    cut = replay(engine(max_model_len=10), [Arrival(4, 30)])
    assert cut.num_output_tokens == 6                  # the context ends it


def test_a_request_that_can_never_run_is_refused_and_delays_nobody():
    summary = replay(engine(max_model_len=10), [Arrival(10, 1), Arrival(9, 1)])
    refused, served = summary.records
    assert "leave no room" in refused.error and refused.num_output_tokens == 0
    assert served.error is None and served.num_output_tokens == 1
    assert (summary.num_requests, summary.num_refused, summary.num_prompt_tokens) == (2, 1, 9)


def test_closed_loop_follows_the_ends():
    def next_turn(record):
        turn = len(turns)
        turns.append(record.end_s)
        return Arrival(4, 2, arrival_s=record.end_s + 1, request_id=f"turn {turn}") if turn < 3 else None

    turns: list[float] = []
    summary = replay(engine(cost=Fixed()), [Arrival(4, 2)], follow_up=next_turn)
    assert turns == [20.0, 41.0, 62.0, 83.0]
    assert summary.num_requests == 4


def test_follow_ups_wait_for_their_time_among_planned_arrivals():
    planned = [Arrival(4, 1, 0.0), Arrival(4, 1, 25.0)]
    summary = replay(
        engine(cost=Fixed()), planned,
        follow_up=lambda record: Arrival(4, 1, 30.0, request_id="late") if record.request_id == "0" else None,
    )  # fmt: skip
    starts = {record.request_id: record.first_scheduled_s for record in summary.records}
    assert starts == {"0": 0.0, "1": 25.0, "late": 35.0}


def test_arrivals_out_of_order_are_refused():
    with pytest.raises(ValueError, match="an arrival at 1"):
        replay(engine(), [Arrival(4, 1, 2.0), Arrival(4, 1, 1.0)])


class Patient(Policy):
    """Starts nothing before `until_s`, and says so or not."""

    until_s = 100.0
    says_so = True

    def plan(self, step):
        if step.now_s < self.until_s:
            step.wait_until_s = self.until_s if self.says_so else None
            return
        for request in [*step.running, *step.waiting]:
            step.schedule(request, 1000)


def patient(says_so: bool) -> SimulatedEngine:
    built = engine(cost=Fixed())
    policy = Patient(built.scheduler.policy.parameters, built.scheduler.policy.limits)
    policy.says_so = says_so
    built.scheduler.policy = policy
    return built


def test_the_clock_jumps_to_when_the_policy_wants_to_be_asked_again():
    summary = replay(patient(says_so=True), [Arrival(4, 1, 3.0), Arrival(4, 1, 50.0)])
    assert [record.first_scheduled_s for record in summary.records] == [100.0, 100.0]
    assert summary.num_steps == 1


def test_a_policy_that_leaves_requests_alone_for_ever_is_an_error():
    with pytest.raises(RuntimeError, match="computes nothing, for ever: 1 wait"):
        replay(patient(says_so=False), [Arrival(4, 1)])


def test_preempted_requests_deliver_all_their_tokens():
    steps: list[StepRecord] = []
    arrivals = traffic(60, mean_gap_s=100.0)
    summary = replay(engine(num_blocks=18, watermark=0.0), arrivals, on_step=steps.append)
    assert summary.num_preemptions > 0
    records = {record.request_id: record for record in summary.records}
    assert len(records) == 60
    for index, arrival in enumerate(arrivals):
        record = records[str(index)]
        assert record.num_output_tokens == arrival.output_len
        assert all(earlier < later for earlier, later in pairwise(record.token_times_s))
        assert arrival.arrival_s <= record.first_scheduled_s < record.token_times_s[0]
    num_computed = sum(step.num_prefill_tokens + step.num_decode_tokens for step in steps)
    assert num_computed > sum(arrival.prompt_len + arrival.output_len - 1 for arrival in arrivals)   # some twice
    assert max(step.num_used_blocks for step in steps) <= 18
    assert all(earlier.begun_s + earlier.duration_s <= later.begun_s + 1e-6 for earlier, later in pairwise(steps))


def test_equal_arrivals_give_equal_replays():
    first, second = (replay(engine(num_blocks=18), traffic(50, mean_gap_s=300.0)) for _ in range(2))
    assert first == second and first.num_requests == 50


def test_records_go_to_whoever_takes_them():
    taken = []
    summary = replay(engine(), traffic(5, mean_gap_s=1.0), on_request=taken.append)
    assert len(taken) == 5 and summary.records == ()


def test_a_slice_of_a_long_day_loses_nothing():
    """2,000 requests, with more at once than run; books are checked every hundredth step."""
    engine_ = engine(num_blocks=60)
    arrivals = traffic(2000, mean_gap_s=COST.dense_s(1) * 3)
    ended: dict[str, int] = {}
    waiting = []

    def on_step(record):
        waiting.append(record.num_waiting)
        if record.index % 100 == 0:
            engine_.check_integrity()

    summary = replay(
        engine_, iter(arrivals), on_step=on_step,
        on_request=lambda record: ended.__setitem__(record.request_id, record.num_output_tokens),
    )  # fmt: skip
    assert ended == {str(index): arrival.output_len for index, arrival in enumerate(arrivals)}
    assert summary.num_output_tokens == sum(arrival.output_len for arrival in arrivals)
    assert max(waiting) > 0 and not engine_.has_work
    assert engine_.scheduler.kv.num_used_blocks == 0


# What the parameters default to is too large for a pool this small.
PARAMETERS = {
    "static": {"batch_size": 4}, "static_impatient": {"batch_size": 4}, "packed_static": {"batch_size": 4},
}  # fmt: skip


@pytest.mark.parametrize("policy", policy_names())
def test_every_policy_delivers_every_token(policy):
    steps: list[StepRecord] = []
    arrivals = traffic(40, mean_gap_s=500.0)
    summary = replay(engine(policy, num_blocks=60, **PARAMETERS.get(policy, {})), arrivals, on_step=steps.append)
    found = {record.request_id: record.num_output_tokens for record in summary.records}
    assert found == {str(index): arrival.output_len for index, arrival in enumerate(arrivals)}
    pads = any(step.num_padding_rows for step in steps)
    assert pads or policy not in ("static", "static_impatient", "turbo")
    assert not pads or policy not in ("packed_static", "orca", "chunked")
    assert all(0 <= step.num_unused_blocks <= step.num_used_blocks <= 60 for step in steps)

"""The thin step loop of the simulator beside the engine's own: equal plans, at equal times."""

from collections.abc import Iterable

import pytest

from engine.core import EngineCore
from engine.errors import RequestTooLarge
from engine.request import FinishReason, GenerationRequest
from engine.sampling.params import SamplingParams
from engine.scheduling.plan import StepPlan
from engine.simulation.clock import VirtualClock
from engine.simulation.composition import step_rows
from engine.simulation.records import Arrival
from engine.simulation.replay import replay
from engine.simulation.runner import SimulatedRunner
from tests.engine.builders import LetterTokenizer
from tests.engine.simulation.driver import COST, engine, traffic
from tests.helpers import HashRunner


class Recorder:
    def __init__(self):
        self.steps: list[tuple[StepPlan, float, float]] = []
        self.ends: dict[str, tuple[FinishReason, float]] = {}

    def on_step(self, plan, sampled, begun_s, ended_s):
        assert sampled.keys() == set(plan.sampling)
        self.steps.append((plan, begun_s, ended_s))

    def on_finish(self, request, now_s):
        self.ends[request.request_id] = (request.finish_reason, now_s)


def shape(plan: StepPlan) -> tuple[object, ...]:
    """All of a plan but the token ids of its new requests."""
    return (
        list(plan.num_scheduled_tokens.items()), plan.start, plan.block_tables, plan.sampling, plan.padding,
        plan.preempted, plan.finished, {request_id: len(tokens) for request_id, (_, tokens) in plan.new.items()},
    )  # fmt: skip


class TimedHashRunner(HashRunner):
    """Checks what is in every block, and takes the time that the simulator charges."""

    def __init__(self, num_blocks: int, block_size: int, clock: VirtualClock):
        super().__init__(num_blocks, block_size)
        self.clock = clock

    def execute(self, plan):
        self.clock.advance(COST.step_s(step_rows(plan, self.block_size)))
        return super().execute(plan)


def run_core(
    arrivals: Iterable[Arrival], runner_of, *, prefix_caching: bool, num_blocks: int, **parameters: object
) -> Recorder:
    """The arrivals through the engine of the service, in virtual time."""
    simulated = engine(num_blocks=num_blocks, prefix_caching=prefix_caching, **parameters)    # for its scheduler
    clock, recorder = simulated.clock, Recorder()
    core = EngineCore(
        simulated.scheduler, runner_of(clock), LetterTokenizer(), model_name="letters", vocab_size=10_000,
        eos_token_ids=frozenset(), max_num_waiting=1000, clock=clock, check_every_step=True, observer=recorder,
    )  # fmt: skip
    pending = list(enumerate(arrivals))
    while pending or core.has_work:
        if not core.has_work:
            clock.advance_to(pending[0][1].arrival_s)
        while pending and pending[0][1].arrival_s <= clock.now_s:
            index, arrival = pending.pop(0)
            tokens = arrival.prompt_token_ids or tuple(range(40 * index, 40 * index + arrival.prompt_len))
            sampling = SamplingParams(arrival.max_tokens or arrival.output_len, temperature=0.0, ignore_eos=True)
            core.add_request(
                GenerationRequest(str(index), tokens, sampling, priority=arrival.priority, tenant=arrival.tenant)
            )
        core.step()
    return recorder


@pytest.mark.parametrize("parameters", [{}, {"max_num_batched_tokens": 16}, {"watermark": 0.2}])
def test_plans_are_those_of_the_service(parameters):
    arrivals = traffic(80, mean_gap_s=800.0)
    simulated, num_blocks = Recorder(), 20
    summary = replay(engine(num_blocks=num_blocks, observer=simulated, **parameters), arrivals)
    served = run_core(
        arrivals, lambda clock: TimedHashRunner(num_blocks, 4, clock),
        prefix_caching=False, num_blocks=num_blocks, **parameters,
    )  # fmt: skip
    assert summary.num_preemptions > 0 and len(simulated.steps) == summary.num_steps > 100
    assert [shape(plan) for plan, *_ in simulated.steps] == [shape(plan) for plan, *_ in served.steps]
    assert [times for _, *times in simulated.steps] == [times for _, *times in served.steps]
    assert simulated.ends == served.ends


def test_prefixes_are_found_as_in_the_service():
    system = tuple(range(100, 130))
    arrivals = [Arrival(33, 4, 500.0 * i, prompt_token_ids=(*system, i, i, i)) for i in range(10)]
    simulated = Recorder()
    summary = replay(engine(prefix_caching=True, observer=simulated), arrivals)
    served = run_core(
        arrivals, lambda clock: SimulatedRunner(COST, clock, 4), prefix_caching=True, num_blocks=64
    )
    assert [record.num_cached_tokens for record in summary.records] == [0, *[28] * 9]
    assert [shape(plan) for plan, *_ in simulated.steps] == [shape(plan) for plan, *_ in served.steps]
    assert simulated.ends == served.ends


def test_prompts_without_content_share_nothing():
    summary = replay(engine(prefix_caching=True), [Arrival(32, 2, 5000.0 * i) for i in range(3)])
    assert [record.num_cached_tokens for record in summary.records] == [0, 0, 0]


def test_an_early_end_is_a_stop_and_a_late_one_a_length():
    recorder = Recorder()
    replay(engine(observer=recorder), [Arrival(4, 2, max_tokens=9), Arrival(4, 2), Arrival(90, 50)])
    assert [recorder.ends[i][0] for i in "012"] == [FinishReason.STOP, FinishReason.LENGTH, FinishReason.LENGTH]


def test_priorities_and_tenants_reach_the_policy():
    built = engine()
    built.add(Arrival(4, 2, priority=3, tenant="blue"))
    (request,) = built.scheduler.waiting
    assert (request.priority, request.generation.tenant) == (3, "blue")


def test_a_refusal_leaves_nothing_behind():
    built = engine(num_blocks=2)
    with pytest.raises(RequestTooLarge):
        built.add(Arrival(9, 1))
    assert not built.has_work and built.step() is None

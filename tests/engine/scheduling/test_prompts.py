from engine.scheduling.policy import Policy
from engine.scheduling.prompts import continue_prompts, is_prefilling, num_tokens_left
from engine.scheduling.step_builder import StepBuilder
from tests.engine.scheduling.driver import scheduler


class Chunks(Policy):
    """Prompts begun go on within 6 tokens; then all decode, then the rest of the step is for new ones."""

    def plan(self, step: StepBuilder) -> None:
        self.seen = [(request.request_id, num_tokens_left(step, request)) for request in (*step.running, *step.waiting)]
        self.prefilling = [request.request_id for request in step.running if is_prefilling(request)]
        continue_prompts(step, 6)
        for request in step.waiting:
            if step.num_tokens < 6:
                step.reserve(request, request.num_tokens)
                step.schedule(request, 6 - step.num_tokens)


def test_prompts_go_on_in_order_of_arrival_within_the_budget():
    engine = scheduler(Chunks)
    a, b, c = engine.add(9), engine.add(5), engine.add(2)
    assert engine.steps(3) == [{a: 6}, {a: 3, b: 3}, {b: 2, c: 2}]


def test_prompt_is_in_the_making_to_its_last_token():
    engine = scheduler(Chunks)
    policy = engine.scheduler.policy
    assert isinstance(policy, Chunks)
    a = engine.add(7)
    engine.step()
    engine.step()
    assert policy.prefilling == [a]                    # one token left, and it is a prompt's
    engine.step()
    assert policy.prefilling == []


def test_tokens_left_leave_out_what_is_computed_or_cached():
    engine = scheduler(Chunks)
    policy = engine.scheduler.policy
    assert isinstance(policy, Chunks)
    a = engine.add(range(8))
    engine.steps(2)
    b = engine.add([*range(8), 100, 101])
    engine.step()
    assert policy.seen == [(a, 1), (b, 2)]

from engine.request import Request
from engine.scheduling.policy import Policy
from engine.scheduling.shortage import decode_all, schedule_or_preempt
from engine.scheduling.step_builder import StepBuilder
from tests.engine.scheduling.driver import Driver, scheduler


class Decodes(Policy):
    """All prompts in the first step, then decodes; in a shortage, whom `choose` names."""

    def plan(self, step: StepBuilder) -> None:
        for request in step.waiting if not step.num_running else ():
            step.schedule(request, 1000)
        decode_all(step)


class Oldest(Decodes):
    def plan(self, step: StepBuilder) -> None:
        if not step.num_running:
            return super().plan(step)
        self.kept = [schedule_or_preempt(step, request, 1, oldest) for request in step.running]


def oldest(step: StepBuilder) -> Request | None:
    return next(step.running, None)


def full_pool(policy: type[Policy], *lengths: int) -> Driver:
    engine = scheduler(policy, num_blocks=sum(-(-length // 4) for length in lengths))
    for length in lengths:
        engine.add(length)
    engine.step()
    assert engine.kv.num_available_blocks == 0
    return engine


def test_newest_gives_up_its_blocks():
    engine = full_pool(Decodes, 8, 3, 7)
    assert engine.step() == {"a": 1, "b": 1}
    assert (engine.running, engine.waiting) == (["a", "b"], ["c"])


def test_request_may_be_its_own_victim():
    engine = full_pool(Decodes, 7, 8)
    assert engine.step() == {"a": 1}
    assert engine.waiting == ["b"]


def test_victim_is_whom_the_policy_chooses_though_already_scheduled():
    engine = full_pool(Oldest, 7, 8)
    assert engine.step() == {"b": 1}
    assert (engine.waiting, engine.plan.preempted) == (["a"], ("a",))
    policy = engine.scheduler.policy
    assert isinstance(policy, Oldest) and policy.kept == [True, True]


def test_one_who_is_chosen_to_lose_is_told():
    engine = full_pool(Oldest, 8, 7)
    assert engine.step() == {"b": 1}
    policy = engine.scheduler.policy
    assert isinstance(policy, Oldest) and policy.kept == [False, True]

import random
from collections import Counter

import pytest
from pydantic import ValidationError

from engine.scheduling.policies.fair import Fair
from engine.scheduling.policy import CPU_LIMITS, Limits
from tests.engine.scheduling.driver import Driver, scheduler


def fair(**options: object) -> Driver:
    return scheduler("fair", **{"watermark": 0.0, **options})


def policy_of(engine: Driver) -> Fair:
    policy = engine.scheduler.policy
    assert isinstance(policy, Fair)
    return policy


def test_budgets_left_null_are_those_of_the_device():
    assert Fair(Fair.Parameters(), CPU_LIMITS).limits == CPU_LIMITS
    assert Fair(Fair.Parameters(max_num_batched_tokens=7, max_num_seqs=3), CPU_LIMITS).limits == Limits(7, 3)


@pytest.mark.parametrize("weights", [{"a": 0}, {"a": -1}, {"a": float("inf")}, {"a": float("nan")}])
def test_weights_must_be_positive_numbers(weights: dict[str, float]):
    with pytest.raises(ValidationError):
        Fair.Parameters(weights=weights)


# Without tenants it is chunked


def test_one_tenant_is_served_as_by_chunked():
    for options in ({"max_num_batched_tokens": 10}, {"num_blocks": 6}, {"max_num_seqs": 2}):
        engines = fair(**options), scheduler("chunked", **options)
        for engine in engines:
            for length in (12, 5, 3, 7):
                engine.add(length, max_tokens=6)
        for _ in range(12):
            assert engines[0].step() == engines[1].step()


# Shares


def tokens_by_tenant(engine: Driver, num_steps: int) -> Counter[str]:
    """Tokens computed for each tenant, the first letter of its requests' names."""
    computed: Counter[str] = Counter()
    for _ in range(num_steps):
        for request_id, count in engine.step().items():
            computed[request_id[0]] += count
    return computed


def flood(engine: Driver, tenant: str, count: int, prompt: int, max_tokens: int) -> None:
    for number in range(count):
        engine.add(prompt, max_tokens, name=f"{tenant}{number}", tenant=tenant)


def test_next_place_goes_to_the_tenant_that_is_behind():
    engine = fair(max_num_seqs=1)
    flood(engine, "x", 3, prompt=8, max_tokens=1)
    flood(engine, "y", 3, prompt=4, max_tokens=1)
    order = [next(iter(engine.step())) for _ in range(6)]
    assert order == ["x0", "y0", "y1", "x1", "y2", "x2"]    # 8 | 4, 8 | 16 | 12 | 24; a tie goes to the elder


@pytest.mark.parametrize(("weights", "expected"), [({}, (200, 200)), ({"x": 3.0}, (300, 100)), ({"y": 4.0}, (80, 320))])
def test_tenants_with_work_share_tokens_by_weight(weights: dict[str, float], expected: tuple[int, int]):
    engine = fair(max_num_seqs=1, weights=weights)
    flood(engine, "x", 100, prompt=4, max_tokens=1)
    flood(engine, "y", 100, prompt=4, max_tokens=1)
    computed = tokens_by_tenant(engine, 100)
    assert (computed["x"], computed["y"]) == expected


def test_share_is_of_tokens_not_of_requests():
    engine = fair(max_num_seqs=4)
    flood(engine, "x", 200, prompt=4, max_tokens=2)
    flood(engine, "y", 40, prompt=30, max_tokens=10)
    computed = tokens_by_tenant(engine, 60)
    assert abs(computed["x"] - computed["y"]) <= 2 * 40


def test_flood_before_one_request_delays_it_by_what_runs_only():
    engine = fair(max_num_seqs=2)
    flood(engine, "x", 50, prompt=4, max_tokens=3)
    assert engine.steps(2) == [{"x0": 4, "x1": 4}, {"x0": 1, "x1": 1}]
    engine.add(5, max_tokens=2, name="y0", tenant="y")
    assert engine.steps(2) == [{"x0": 1, "x1": 1}, {"y0": 5, "x2": 4}]


def test_idling_earns_no_credit():
    engine = fair(max_num_seqs=1)
    flood(engine, "y", 1, prompt=4, max_tokens=1)
    flood(engine, "x", 30, prompt=4, max_tokens=1)
    engine.steps(11)                                   # y idles while x is given 40 tokens
    for number in range(1, 6):
        engine.add(4, max_tokens=1, name=f"y{number}", tenant="y")
    assert tokens_by_tenant(engine, 8) == {"x": 16, "y": 16}


def test_running_request_of_the_tenant_that_is_behind_takes_a_short_budget_first():
    engine = fair(max_num_batched_tokens=2)
    flood(engine, "x", 2, prompt=1, max_tokens=50)
    assert engine.step() == {"x0": 1, "x1": 1}
    engine.add(1, max_tokens=50, name="y0", tenant="y")
    computed = tokens_by_tenant(engine, 40)
    assert computed == {"x": 40, "y": 40}


def test_virtual_times_stay_together_while_both_wait():
    """The bound of the module's text, under random lengths and weights."""
    for seed in range(6):
        generator = random.Random(seed)
        weights = {tenant: generator.choice([0.5, 1.0, 3.0]) for tenant in "xyz"}
        engine = fair(max_num_seqs=4, max_num_batched_tokens=16, num_blocks=60, weights=weights)
        for number in range(60):
            for tenant in "xyz":
                engine.add(
                    generator.randint(1, 30), generator.randint(1, 10), name=f"{tenant}{number}", tenant=tenant
                )
        times = policy_of(engine).times
        bound = 4 * 40 / min(weights.values())
        num_checked = 0
        while {name[0] for name in engine.waiting} == set("xyz"):
            engine.step()
            spread = [times[tenant] for tenant in "xyz"]
            assert max(spread) - min(spread) <= bound
            num_checked += 1
        assert num_checked > 50 and engine.scheduler.num_preemptions == 0


def test_head_of_the_tenant_behind_is_not_overtaken_while_it_lacks_blocks():
    engine = fair(num_blocks=6)
    engine.add(12, max_tokens=4, name="x0", tenant="x")
    assert engine.step() == {"x0": 12}
    engine.add(20, max_tokens=1, name="y0", tenant="y")
    engine.add(4, max_tokens=1, name="x1", tenant="x")
    assert engine.steps(3) == [{"x0": 1}] * 3
    assert engine.step() == {"y0": 20, "x1": 4}


# Priorities


def test_priority_orders_a_tenants_own_requests_and_no_others():
    engine = fair(max_num_seqs=1)
    flood(engine, "x", 2, prompt=4, max_tokens=1)
    engine.add(4, max_tokens=1, name="x urgent", tenant="x", priority=-5)
    flood(engine, "y", 2, prompt=4, max_tokens=1)
    order = [next(iter(engine.step())) for _ in range(5)]
    assert order == ["x urgent", "y0", "x0", "y1", "x1"]


# Shortage


def test_newest_request_of_the_most_served_tenant_is_recomputed():
    engine = fair(num_blocks=7, weights={"y": 100.0})
    flood(engine, "x", 2, prompt=7, max_tokens=20)
    assert engine.step() == {"x0": 7, "x1": 7}
    engine.add(11, max_tokens=20, name="y0", tenant="y")
    assert engine.step() == {"x0": 1, "y0": 11, "x1": 1}
    assert engine.step() == {"y0": 1, "x0": 1}         # x0 needs a third block; y0 is the newest, but x has had more
    assert (engine.running, engine.waiting) == (["x0", "y0"], ["x1"])


def test_tokens_not_computed_after_all_are_not_charged():
    engine = fair(num_blocks=5)
    flood(engine, "x", 1, prompt=8, max_tokens=20)
    flood(engine, "y", 1, prompt=8, max_tokens=20)
    assert engine.step() == {"x0": 8, "y0": 8}
    assert engine.step() == {"y0": 1}                  # x0 came first and took the last block, and with it x was ahead
    times = policy_of(engine).times
    assert (times["x"], times["y"], engine.plan.preempted) == (8, 9, ("x0",))


def test_everyone_ends_and_nobody_is_remembered():
    engine = fair(num_blocks=8, max_num_seqs=3)
    for number in range(40):
        engine.add(1 + number % 9, max_tokens=8, name=str(number), tenant=f"tenant {number % 13}")
    engine.run()
    assert len(engine.done) == 40
    engine.step()
    assert len(policy_of(engine).times) == 0


def test_memory_is_bounded_while_tenants_come_and_go():
    engine = fair(max_num_seqs=2)
    engine.add(1, max_tokens=900, name="stays", tenant="stays")
    most = 0
    for number in range(400):
        engine.add(3, max_tokens=1, name=str(number), tenant=f"passes {number}")
        engine.steps(2)
        most = max(most, len(policy_of(engine).times))
    assert most <= 10

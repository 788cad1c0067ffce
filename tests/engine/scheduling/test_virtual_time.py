import pytest

from engine.scheduling.virtual_time import VirtualTimes


def test_time_is_tokens_over_weight():
    times = VirtualTimes({"b": 2.0})
    times.enter(["a", "b", None])
    for tenant in ("a", "b", None):
        times.charge(tenant, 10)
    times.charge("a", -4)
    assert (times["a"], times["b"], times[None]) == (6, 5, 10)


def test_newcomer_begins_at_the_least_time_of_a_tenant_with_work():
    times = VirtualTimes({})
    times.enter(["a", "b"])
    times.charge("a", 30)
    times.charge("b", 50)
    times.enter(["a", "b", "c"])
    assert times["c"] == 30


def test_idling_earns_nothing():
    times = VirtualTimes({})
    times.enter(["a", "b"])
    times.charge("b", 100)
    times.enter(["b"])
    times.enter(["a", "b"])
    assert times["a"] == 100


def test_work_in_advance_is_not_forgiven_by_leaving():
    times = VirtualTimes({})
    times.enter(["a", "b"])
    times.charge("a", 100)
    times.charge("b", 10)
    times.enter(["b"])
    times.enter(["a", "b"])
    assert (times["a"], times["b"]) == (100, 10)


def test_idle_tenant_is_forgotten_once_the_clock_has_reached_it():
    times = VirtualTimes({})
    times.enter(["a", "b"])
    times.charge("a", 5)
    times.enter(["b"])
    assert len(times) == 2
    times.charge("b", 5)
    times.enter(["b"])
    assert len(times) == 1
    with pytest.raises(KeyError):
        times["a"]


def test_nobody_is_remembered_when_all_have_left_and_the_clock_stays_ahead():
    times = VirtualTimes({})
    times.enter(["a", "b"])
    times.charge("a", 7)
    times.enter([])
    assert len(times) == 0
    times.enter(["b"])
    assert times["b"] == 7


def test_memory_is_bounded_while_thousands_pass_a_tenant_that_stays():
    times = VirtualTimes({})
    most = 0
    for number in range(5000):
        times.enter(["stays", f"passes {number}"])
        times.charge("stays", 3)
        times.charge(f"passes {number}", 9)
        most = max(most, len(times))
    assert most <= 5

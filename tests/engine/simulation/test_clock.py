import pytest

from engine.simulation.clock import VirtualClock


def test_time_passes_only_when_told():
    clock = VirtualClock()
    assert (clock(), clock()) == (0.0, 0.0)
    clock.advance(1.5)
    clock.advance(0.0)
    assert clock() == 1.5


def test_advancing_to_the_past_takes_no_time():
    clock = VirtualClock(3.0)
    clock.advance_to(2.0)
    assert clock() == 3.0
    clock.advance_to(4.0)
    assert clock() == 4.0


@pytest.mark.parametrize("duration_s", [-1e-9, float("nan")])
def test_time_never_runs_back(duration_s):
    with pytest.raises(ValueError, match="a step lasts"):
        VirtualClock().advance(duration_s)

import signal

import pytest

from serve_app.launcher.signals import Interrupted, Signals
from tests.helpers import ManualClock


def test_a_signal_before_readiness_stops_the_start():
    signals = Signals()
    signals.raise_if_any()
    signals.note(signal.SIGTERM)
    with pytest.raises(Interrupted) as raised:
        signals.raise_if_any()
    assert raised.value.exit_status == 143


def test_echoes_of_a_signal_are_not_a_second_one():
    clock = ManualClock()
    signals = Signals(clock)
    for clock.now_s in (0.0, 0.1, 0.2, 5.0):
        signals.note(signal.SIGINT)
    assert signals.received == [signal.SIGINT, signal.SIGINT]

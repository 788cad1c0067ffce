import signal

from serve_app.launcher.cluster import StopSignals, failure_cause

TRACEBACK = """The deployment failed to start 2 times in a row. See controller logs for details. Error:
ray::ServeReplica:conveyor:LLMServer.initialize_and_get_metadata() (pid=7)
  File "engine/model/loader.py", line 7, in load
    raise ConfigError("x: y")
ValueError: in the middle

The above exception was the direct cause of the following exception:

engine.errors.ConfigError: model: /models/m: weights are cut short
"""


def test_cause_is_the_last_exception_and_ours_speaks_for_itself():
    assert failure_cause(TRACEBACK) == "model: /models/m: weights are cut short"


def test_cause_of_a_foreign_exception_keeps_its_name():
    cause = "ModuleNotFoundError: No module named 'x'"
    assert failure_cause(f"Error:\n{cause}\n") == cause


def test_cause_without_an_exception_is_the_message_on_one_line():
    assert failure_cause("2 replicas take more\nthan 30 s to schedule") == "2 replicas take more than 30 s to schedule"


def test_no_message_still_says_something():
    assert failure_cause("") == "Serve gave no reason"


def test_sigterm_drains_and_sigusr1_also_cuts_short():
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        stop = StopSignals()
        signal.raise_signal(signal.SIGTERM)
        assert (stop.drain.is_set(), stop.cut.is_set()) == (True, False)
        signal.raise_signal(signal.SIGUSR1)
        assert stop.cut.is_set()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

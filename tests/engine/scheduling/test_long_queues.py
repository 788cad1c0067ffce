"""What a step costs must not grow with the queue behind it."""

from collections.abc import Iterator

import pytest

from engine.request import Request
from engine.scheduling import queues
from engine.scheduling.policies import policy_names
from tests.engine.scheduling.driver import scheduler

NUM_WAITING = 1500
MOST_LOOKED_AT = 300                                   # turbo sorts a window of 256, the others a batch at most


@pytest.mark.parametrize("policy", policy_names())
def test_a_step_looks_at_a_few_of_those_who_wait(policy: str, monkeypatch: pytest.MonkeyPatch):
    looked_at = 0
    original = queues._Line.__iter__

    def counting(line: queues._Line) -> Iterator[Request]:
        nonlocal looked_at
        for request in original(line):
            looked_at += 1
            yield request

    engine = scheduler(policy, num_blocks=400)
    for index in range(NUM_WAITING):
        engine.add(4, max_tokens=3, name=str(index), tenant="abc"[index % 3])
    engine.step()
    monkeypatch.setattr(queues._Line, "__iter__", counting)
    monkeypatch.setattr(engine.scheduler, "check_integrity", lambda: None)     # which looks at all, and is no step's
    for _ in range(12):
        looked_at = 0
        engine.step()
        assert looked_at <= MOST_LOOKED_AT
    assert NUM_WAITING > engine.scheduler.num_waiting > MOST_LOOKED_AT + 100

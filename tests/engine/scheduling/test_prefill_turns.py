import pytest

from engine.scheduling.prefill_turns import PrefillTurnParameters, PrefillTurns


def turns(ratio: float = 1.2, max_waiting_tokens: int = 20) -> PrefillTurns:
    return PrefillTurns(PrefillTurnParameters(waiting_served_ratio=ratio, max_waiting_tokens=max_waiting_tokens))


@pytest.mark.parametrize(
    ("ratio", "num_running", "needed"),
    [(1.2, 1, 1), (1.2, 4, 4), (1.2, 5, 6), (1.2, 10, 12), (0.3, 3, 1), (0.3, 7, 2), (0.0, 9, 1)],
)
def test_so_many_must_be_able_to_start(ratio: float, num_running: int, needed: int):
    assert turns(ratio).num_to_pause_for(num_running) == needed


def test_one_is_enough_when_nobody_runs_or_after_enough_decode_steps():
    rule = turns(ratio=10, max_waiting_tokens=2)
    assert rule.num_to_pause_for(0) == 1
    rule.prefilled(0)
    needed = []
    for _ in range(4):
        needed.append(rule.num_to_pause_for(3))
        rule.decoded()
    assert needed == [30, 30, 1, 1]
    rule.prefilled(0)
    assert rule.num_to_pause_for(3) == 30


def test_pause_is_followed_by_a_decode_step():
    rule = turns(ratio=1)
    rule.prefilled(0)
    assert rule.num_to_pause_for(2) == 2               # nobody was paused
    rule.prefilled(2)
    assert rule.num_to_pause_for(4) is None
    rule.decoded()
    assert rule.num_to_pause_for(4) == 4

import pytest

from engine.api import EngineStats
from serve_app.errors import ApiError
from serve_app.fleet import BUSY_S, FRESH_S, Fleet
from serve_app.replicas import ReplicaStats
from tests.helpers import ManualClock


class Replicas:
    def __init__(self, *answers: ReplicaStats) -> None:
        self.answers = list(answers)
        self.error: Exception | None = None

    async def stats(self, timeout_s: float) -> list[ReplicaStats]:
        if self.error is not None:
            raise self.error
        return self.answers


def replica(name: str = "r", *, is_alive: bool = True, **stats: object) -> ReplicaStats:
    return ReplicaStats(name, is_alive, EngineStats(**stats))  # type: ignore[arg-type]


async def polled(*answers: ReplicaStats) -> tuple[Fleet, Replicas, ManualClock]:
    replicas, clock = Replicas(*answers), ManualClock()
    fleet = Fleet(replicas, clock)  # type: ignore[arg-type]
    await fleet.poll()
    return fleet, replicas, clock


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (replica(heartbeat_age_s=0.1), True),
        (replica(heartbeat_age_s=0.1, is_alive=False), False),
        (replica(heartbeat_age_s=FRESH_S + 1), False),
        (replica(heartbeat_age_s=FRESH_S + 1, is_stepping=True), True),        # a long step is busy, not dead
        (replica(heartbeat_age_s=BUSY_S + 1, is_stepping=True), False),
    ],
)
async def test_healthy_is_a_loop_that_comes_round(answer: ReplicaStats, expected: bool) -> None:
    fleet, *_ = await polled(answer)
    assert fleet.is_healthy == expected


async def test_one_healthy_replica_is_enough() -> None:
    fleet, *_ = await polled(replica("a", is_alive=False), replica("b"))
    assert fleet.is_healthy


async def test_silence_turns_unhealthy_with_time() -> None:
    fleet, replicas, clock = await polled(replica())
    replicas.answers = []
    await fleet.poll()
    assert fleet.is_healthy                                 # one late answer is no news
    clock.now_s += FRESH_S
    assert not fleet.is_healthy
    await fleet.poll()
    assert fleet.stats() == {}


async def test_a_failing_poll_is_survived() -> None:
    fleet, replicas, _ = await polled(replica())
    replicas.error = RuntimeError("no route")
    await fleet.poll()
    assert fleet.is_healthy


async def test_heartbeats_age_between_polls() -> None:
    fleet, _, clock = await polled(replica(heartbeat_age_s=0.5))
    clock.now_s += 1
    assert fleet.stats()["r"].heartbeat_age_s == 1.5


async def test_a_request_that_finds_no_replica_is_told_so_in_the_end() -> None:
    fleet, *_ = await polled()
    with pytest.raises(ApiError) as refusal:
        await fleet.ready(timeout_s=0.01)
    assert refusal.value.status == 503

import asyncio
import contextlib
import os

import pytest

from bench.peers.process import PeerSystem
from bench.peers.turns import Failure, Roster, Turn, label_of, play, turns_of
from bench.server_stats import ServerFigures
from bench.systems import Measurement
from tests.bench.peers.fakes import CRASHES, HANGS, OBJECTIVE, burst, peer_process, single


def short(turns):
    return [(turn.system, turn.workload) for turn in turns]


def test_servers_come_one_after_another_then_all_others_workload_by_workload():
    assert short(turns_of(1, ["s", "t"], ["a", "b"], ["x", "y"], ["once"])) == [
        ("s", "x"), ("s", "y"), ("t", "x"), ("t", "y"), ("a", "x"), ("b", "x"), ("a", "y"), ("b", "y"),
    ]  # fmt: skip


def test_the_other_workloads_are_for_servers_in_the_first_repeat():
    assert short(turns_of(0, ["s"], ["a"], ["x"], ["once"])) == [("s", "x"), ("s", "once"), ("a", "x")]


def test_a_burst_is_told_by_its_cap():
    assert (label_of(burst(8)), label_of(single())) == ("burst 8", "single")


class FakeSystem:
    """Answers with no records; says when it is opened and closed."""

    startup_s = 2.0
    pid = os.getpid()

    def __init__(self, name, log, *, breaks=False, hangs=False):
        self.name = name
        self.description = {"dtype": "float16"}
        self._log, self._breaks, self._hangs = log, breaks, hangs

    @contextlib.asynccontextmanager
    async def open(self):
        self._log.append(f"+{self.name}")
        yield self
        self._log.append(f"-{self.name}")

    async def run(self, workload, on_done):
        if workload.name != "warm-up":
            self._log.append(f"{self.name} {label_of(workload)}")
            if self._hangs:
                await asyncio.get_running_loop().create_future()
            if self._breaks:
                raise ValueError("a\nlong story")
        return [], ServerFigures()


WORKLOADS = {"burst 8": burst(8), "single": single()}


def ignore(turn):
    return lambda record: None


async def outcomes_of(systems, turns, *, servers=(), failed=None, limit_s=60.0):
    roster = Roster({s.name: s.open for s in systems}, failed=failed or {}, limit_s=limit_s)
    async with roster.closing():
        return [o async for o in play(roster, turns, WORKLOADS, servers, OBJECTIVE, ignore)], roster


async def test_systems_stay_open_between_turns_and_servers_do_not_meet():
    log = []
    systems = [FakeSystem(name, log) for name in ("s", "t", "a", "b")]
    turns = [turn for i in range(2) for turn in turns_of(i, ["s", "t"], ["a", "b"], list(WORKLOADS))]
    outcomes, roster = await outcomes_of(systems, turns, servers={"s", "t"})
    repeat = "+s|s burst 8|s single|-s|+t|t burst 8|t single|-t"
    residents = "{}a burst 8|{}b burst 8|a single|b single"
    expected = "|".join([repeat, residents.format("+a|", "+b|"), repeat, residents.format("", ""), "-a|-b"])
    assert log == expected.split("|")
    assert all(isinstance(outcome, Measurement) for outcome in outcomes)
    assert [outcome.repeat for outcome in outcomes] == [0] * 8 + [1] * 8
    assert roster.startups_s == {"s": [2.0, 2.0], "t": [2.0, 2.0], "a": [2.0], "b": [2.0]}
    assert roster.descriptions["s"] == {"dtype": "float16"}


async def test_a_system_that_fails_is_closed_and_the_others_go_on():
    log = []
    systems = [FakeSystem("a", log, breaks=True), FakeSystem("b", log)]
    turns = turns_of(0, [], ["a", "b"], list(WORKLOADS))
    outcomes, roster = await outcomes_of(systems, turns)
    assert [type(outcome) for outcome in outcomes] == [Failure, Measurement, Failure, Measurement]
    assert outcomes[0] == Failure(turns[0], "a long story")
    assert outcomes[2] == Failure(turns[2], "a long story")
    assert log == ["+a", "a burst 8", "-a", "+b", "b burst 8", "b single", "-b"]
    assert roster.reasons == {"a": "a long story"}


async def test_idle_systems_make_room_those_whose_turn_is_furthest_away_first():
    log, room = [], iter([2, 1, 2])                           # when b is opened, when c is, after one was closed
    systems = {name: FakeSystem(name, log).open for name in "abc"}
    roster = Roster(systems, failed={}, limit_s=60.0, reserve_bytes=2, available=lambda: next(room))
    turns = [Turn(0, name, "single") for name in "abac"]
    async with roster.closing():
        [o async for o in play(roster, turns, WORKLOADS, (), OBJECTIVE, ignore)]
    assert [entry for entry in log if len(entry) == 2] == ["+a", "+b", "-a", "+c", "-b", "-c"]


async def test_what_could_not_be_installed_has_no_turn():
    outcomes, _ = await outcomes_of([], [Turn(0, "a", "single")], failed={"a": "pip said no"})
    assert outcomes == [Failure(Turn(0, "a", "single"), "pip said no")]


async def test_a_system_that_hangs_is_given_up():
    log = []
    outcomes, _ = await outcomes_of([FakeSystem("a", log, hangs=True)], [Turn(0, "a", "single")], limit_s=0.05)
    assert outcomes == [Failure(Turn(0, "a", "single"), "killed: its turn was not over after 0.05 s")]
    assert log == ["+a", "a single", "-a"]


@pytest.mark.parametrize(
    ("command", "reason"),
    [(CRASHES, "ValueError: a weight is missing (its process ended with status 3)"), (HANGS, "killed")],
)
async def test_a_real_process_that_crashes_or_hangs_is_a_failure_and_gone(monkeypatch, tmp_path, command, reason):
    started = []
    monkeypatch.setattr("bench.peers.process._END_S", 0.05)

    @contextlib.asynccontextmanager
    async def opened():
        async with PeerSystem.start("bad", command, tmp_path / "bad.log") as system:
            started.append(system)
            yield system

    roster = Roster(
        {"bad": opened, "good": lambda: PeerSystem.start("good", peer_process(), tmp_path / "good.log")},
        failed={}, limit_s=2.0,
    )  # fmt: skip
    turns = [Turn(0, "bad", "burst 8"), Turn(0, "good", "burst 8")]
    async with roster.closing():
        found = [o async for o in play(roster, turns, WORKLOADS, (), OBJECTIVE, ignore)]
    assert isinstance(found[0], Failure)
    assert reason in found[0].reason
    assert isinstance(found[1], Measurement)
    assert started[0]._process.returncode is not None

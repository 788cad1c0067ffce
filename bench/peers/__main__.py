"""Ours and every peer on the same workloads in one run, taking turns; `--help` tells all."""

import argparse
import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from tqdm import tqdm

from bench.metrics import Objective, RequestRecord
from bench.peers.estimate import estimate_s
from bench.peers.findings import Comparison
from bench.peers.lineup import SYSTEMS, opener_of, prepare
from bench.peers.options import compared_workloads, other_workloads, parser, settings_of
from bench.peers.packages import PeerFailed
from bench.peers.publish import SCHEMA, publish
from bench.peers.turns import Outcome, Roster, Turn, play, turns_of
from bench.policies.publish import new_folder
from bench.result_file import stamped
from bench.systems import OnDone
from bench.vocabulary import load_vocabulary
from bench.workloads import Workload
from engine.api import ConfigError
from engine.config import cache_directory


class Run:
    """One comparison, from its options to its folder."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Raises ConfigError if there is no such model."""
        vocabulary = load_vocabulary(args.model)
        rounds = [compared_workloads(args, vocabulary, repeat) for repeat in range(args.repeats)]
        self._args = args
        self._servers = [name for name in args.systems if SYSTEMS[name].is_server]
        self._residents = [name for name in args.systems if not SYSTEMS[name].is_server]
        others = other_workloads(args, vocabulary) if self._servers else {}
        self._labels, self._others = tuple(rounds[0]), tuple(others)
        self._workloads = {(i, label): w for i, found in enumerate(rounds) for label, w in found.items()}
        self._settings = settings_of(args, self._workloads.values())
        self._workloads |= {(0, label): workload for label, workload in others.items()}
        self._outcomes: list[Outcome] = []

    @property
    def repeats(self) -> list[list[Turn]]:
        return [
            turns_of(repeat, self._servers, self._residents, self._labels, self._others)
            for repeat in range(self._args.repeats)
        ]

    def estimate_s(self) -> float:
        turns = [turn for turns in self.repeats for turn in turns]
        settings = self._settings
        size, threads = settings.model_bytes, settings.num_threads
        return estimate_s(turns, self._workloads, model_bytes=size, num_threads=threads)

    def prepare(self, logs: Path) -> dict[str, str]:
        """Install peers and convert the model before anything is measured; system -> why it cannot be had."""
        failed = {}
        for name in tqdm(self._args.systems, desc="preparing", unit="system"):
            try:
                prepare(name, self._settings, logs / f"{name}.log")
            except (PeerFailed, OSError) as error:
                failed[name] = str(error)
                tqdm.write(f"{name}: {error}")
        return failed

    async def measure(self, failed: Mapping[str, str], logs: Path, folder: Path) -> str:
        """Take all turns, saving after each repeat and at an interruption; returns the tables."""
        openers = {
            name: opener_of(name, self._settings, logs / f"{name}.log")
            for name in self._args.systems
            if name not in failed
        }
        stamp = stamped(SCHEMA)
        objective = Objective(self._args.ttft_objective_s, self._args.tpot_objective_s)
        text = ""
        reserve_bytes = int(self._args.reserve_gib * 2**30)
        roster = Roster(openers, failed=failed, limit_s=self._args.turn_limit_s, reserve_bytes=reserve_bytes)
        num_turns = sum(map(len, self.repeats))
        with tqdm(total=num_turns, unit="turn") as bar:
            async with roster.closing():
                for turns in self.repeats:
                    workloads = {label: w for (i, label), w in self._workloads.items() if i == turns[0].repeat}
                    on_turn = _progress(bar, workloads)
                    try:
                        async for outcome in play(roster, turns, workloads, self._servers, objective, on_turn):
                            self._outcomes.append(outcome)
                            bar.update()
                    finally:                                   # an interruption too leaves what was measured
                        if self._outcomes:
                            text = publish(self._comparison(roster), objective, stamp, folder)
        return text

    def _comparison(self, roster: Roster) -> Comparison:
        return Comparison(
            model=self._args.model, setting=self._args.setting, seed=self._args.seed, systems=tuple(self._args.systems),
            labels=self._labels, others=self._others, outcomes=tuple(self._outcomes), reasons=roster.reasons,
            descriptions=roster.descriptions,
            startups_s={name: tuple(seconds) for name, seconds in roster.startups_s.items()},
        )  # fmt: skip


def _progress(bar: tqdm, workloads: Mapping[str, Workload]) -> Callable[[Turn], OnDone]:
    """The bar counts turns and says whose turn it is and how many of its requests are done."""

    def on_turn(turn: Turn) -> OnDone:
        num_requests, num_done = len(workloads[turn.workload].requests), 0
        bar.set_postfix_str(f"repeat {turn.repeat}, {turn.workload}, {turn.system}")

        def on_done(record: RequestRecord) -> None:
            nonlocal num_done
            num_done += 1
            bar.set_postfix_str(f"repeat {turn.repeat}, {turn.workload}, {turn.system} {num_done}/{num_requests}")
            if record.error is not None:
                bar.write(f"{turn.system}: request {record.index} failed: {record.error}")

        return on_done

    return on_turn


def main(arguments: Sequence[str] | None = None) -> None:
    args = parser().parse_args(arguments)
    try:
        name = args.name or f"peers-{args.model.replace('/', '_').replace(':', '_')}"
        folder = new_folder(name, results=args.results)
        run = Run(args)
        logs = cache_directory() / "bench" / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        print(_plan(run.repeats, run.estimate_s()), flush=True)
        failed = run.prepare(logs)
        if args.install_only:
            raise SystemExit(1 if failed else 0)
        print(asyncio.run(_until_ended(run.measure(failed, logs, folder))))
        print(f"\nsaved {folder}; what peers printed is in {logs}")
    except (ConfigError, OSError) as error:
        raise SystemExit(str(error)) from None
    except KeyboardInterrupt:
        raise SystemExit(128 + signal.SIGINT) from None
    except asyncio.CancelledError:
        raise SystemExit(128 + signal.SIGTERM) from None


async def _until_ended(measuring: Coroutine[Any, Any, str]) -> str:
    """SIGTERM ends a run as Ctrl-C does: with all processes that it started."""
    task = asyncio.ensure_future(measuring)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await task


def _plan(repeats: Sequence[Iterable[Turn]], seconds: float) -> str:
    turns = [turn for turns in repeats for turn in turns]
    systems = len({turn.system for turn in turns})
    about = timedelta(minutes=round(seconds / 60))
    return f"{len(turns)} turns of {systems} systems, about {str(about)[:-3]} h, installing peers not counted"


if __name__ == "__main__":
    main()

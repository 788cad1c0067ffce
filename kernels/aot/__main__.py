"""`python -m kernels.aot`: compile, print the figures, judge them. Exit code 1 where a gate fails."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import triton
from tqdm import tqdm

from kernels.aot import config, gates, snapshot, wheels
from kernels.aot.compile import compile_all
from kernels.aot.figures import Figures
from kernels.aot.launches import Launch
from kernels.aot.selection import selected

_COLUMNS = "{:<46}{:>5}{:>6}{:>8}  {:<22}{:<12}{:>4}{:>7}{:>7}"

Measured = list[tuple[Launch, Figures]]


def main() -> int:
    arguments = _arguments()
    if arguments.docs:
        text = snapshot.DOCS.read_text(encoding="utf-8")
        snapshot.DOCS.write_text(snapshot.documented(text, snapshot.load()), encoding="utf-8")
        return 0
    if arguments.triton:
        return _under(arguments.triton, ["--quick"] if arguments.quick else [])
    measured, complaints = _compile(arguments.quick)
    complaints += [f"{launch.name}: {failure}" for launch, f in measured for failure in gates.failures(launch, f)]
    _print_table(measured)
    named = {launch.name: figures for launch, figures in measured}
    if arguments.update:
        snapshot.save(snapshot.Snapshot(triton.__version__, named))
        print(f"wrote {snapshot.PATH}")
    elif (committed := snapshot.load()).triton == triton.__version__:
        complaints += snapshot.differences(committed, named, whole=not arguments.quick)
    else:
        print(f"not compared with the snapshot, which triton {committed.triton} compiled")
    for complaint in complaints:
        print(f"FAILED  {complaint}")
    print(f"triton {triton.__version__}: {len(measured)} launches compiled, {len(complaints)} complaints")
    return 1 if complaints else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m kernels.aot", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few models only")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--update", action="store_true", help="rewrite the snapshot instead of comparing with it")
    action.add_argument("--docs", action="store_true", help="rewrite the table in docs/kernels.md; compiles nothing")
    action.add_argument("--triton", metavar="VERSION", help="fetch that version and run the gates with it")
    arguments = parser.parse_args()
    if arguments.update and arguments.quick:
        parser.error("--update needs the whole run: a snapshot of a part would drop the rest")
    return arguments


def _under(version: str, options: list[str]) -> int:
    """This program again, with another triton before the installed one."""
    wheel = wheels.fetch(version, config.cache_directory() / "wheels")
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "kernels.aot", *options]
    return subprocess.run(command, env=config.compiler_environment(wheel, root)).returncode


def _compile(quick: bool) -> tuple[Measured, list[str]]:
    """Launches with their figures, in the order of the models; and what did not compile."""
    wanted = selected(quick)
    found: dict[str, Figures] = {}
    failed = []
    results = compile_all(wanted, config.cache_directory(), len(os.sched_getaffinity(0)))
    for launch, outcome in tqdm(results, total=len(wanted), unit="launch", desc="compiling", disable=None):
        if isinstance(outcome, Figures):
            found[launch.name] = outcome
        else:
            failed.append(f"{launch.name}: does not compile: {outcome}")
    return [(launch, found[launch.name]) for launch in wanted.values() if launch.name in found], failed


def _print_table(measured: Measured) -> None:
    print(_COLUMNS.format("", "", "", "", "loads,", "", "per", "instr.", "issue"))
    print(_COLUMNS.format("architecture · model · kernel", "regs", "stack", "shared", "bytes:count", "matrix", "SM",
                          "/token", "/MMA"))  # fmt: skip
    for launch, figures in measured:
        loads = " ".join(f"{width}:{count}" for width, count in figures.loads.items())
        matrix = " ".join(f"{kind}:{count}" for kind, count in figures.matrix.items())
        print(_COLUMNS.format(
            launch.name, figures.registers, figures.stack_bytes, figures.shared_bytes, loads, matrix, figures.blocks,
            figures.per_token_head or "", figures.issue_over_mma or "",
        ))  # fmt: skip
    used = {entry.reason: entry for launch, figures in measured for entry in gates.exemptions_used(launch, figures)}
    for entry in used.values():
        print(f"exempt  {entry.gate}, up to {entry.bound}: {entry.reason}")


if __name__ == "__main__":
    sys.exit(main())

"""The performance guard: a few ratios of times against the committed ones; ends with 1 and names what got worse.

python -m bench.guard
python -m bench.guard --update

Every ratio divides a time of ours by one that the machine needs without us, taken right before or after it in the same
run: torch's products, reading memory, torch's own kernels, a piece of Python. `--update` measures three times over and
writes the medians, with tolerances from how far the three lie apart.
"""

import argparse
from pathlib import Path

from bench.environment import machine
from bench.guard.ratios import (
    COMMITTED,
    Verdict,
    findings_text,
    judge,
    read_committed,
    second_look,
    write_committed,
)
from bench.guard.run import measure


def run(args: argparse.Namespace, number: int) -> dict[str, list[float]]:
    return measure(tiny=args.tiny, rounds=args.rounds, seed=args.seed + number)


def check(args: argparse.Namespace) -> bool:
    """Measure, a second time if anything is worse, and print; whether nothing got worse."""
    committed, cpu = read_committed(args.committed)
    here = machine()["cpu"]
    if cpu and cpu != here:
        print(f"note: {args.committed} is of {cpu}, this is {here}: other processors have other ratios.")
        print("      Write your own first, with --update --committed FILE, before your change.")
    findings = judge(run(args, 0), committed)
    if any(finding.verdict is Verdict.WORSE for finding in findings):
        print(findings_text(findings), "measuring again, for something is worse", sep="\n", flush=True)
        findings = second_look(findings, judge(run(args, 1), committed))
    print(findings_text(findings))
    failures = [finding.name for finding in findings if finding.verdict.is_failure]
    if failures:
        print(f"got worse: {'; '.join(failures)}")
    elif any(finding.verdict in (Verdict.BETTER, Verdict.NEW) for finding in findings):
        print("better or new: --update writes it")
    return not failures


def update(args: argparse.Namespace) -> None:
    runs = [run(args, number) for number in range(args.runs)]
    committed = write_committed(args.committed, runs)
    print(findings_text(judge({name: ratio.runs for name, ratio in committed.items()}, committed)))
    print(f"saved {args.committed}")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="write what is measured instead of judging it")
    parser.add_argument("--committed", type=Path, default=COMMITTED, help="the file to compare with, or to write")
    parser.add_argument("--rounds", type=int, default=5, help="of a run; the median counts")
    parser.add_argument("--runs", type=int, default=3, help="of --update")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes: shows that all runs, and means nothing")
    parser.add_argument("--seed", type=int, default=0)
    return parser


def main(args: argparse.Namespace) -> int:
    if args.update:
        update(args)
        return 0
    return 0 if check(args) else 1


if __name__ == "__main__":
    raise SystemExit(main(parser().parse_args()))

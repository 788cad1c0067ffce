"""Every op checked against float64, then timed against the floor of what it must move or compute.

python -m bench.kernels --device cuda
python -m bench.kernels --device cpu --tiny

Needs torch, triton and transformers' own requirements, nothing of the server. Ends with 1 if a check fails.
"""

import argparse
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from bench.kernel_checks import Finding, checks, run_check
from bench.kernel_rows import Row, goal_rows
from bench.result_file import RESULTS, stamped, write_result
from bench.timing import Peaks, chosen_device, measured_peaks, seconds_per_call, stated_peaks

SCHEMA = "conveyor-kernels/1"
_COLD_BYTES = 256 * 2**20            # inputs taken in turn are together larger than any cache
_MAX_INPUTS = 32


@dataclass(frozen=True, slots=True)
class Timing:
    """One row: `ratio` is the median over the floor, or over the median of the row `against`."""

    name: str
    op: str
    num_bytes: float
    flop: float
    floor_us: float
    median_us: float
    all_us: tuple[float, ...]
    ratio: float
    against: str | None
    goal: float | None

    def __str__(self) -> str:
        goal = "" if self.goal is None else f"{self.goal:>7.2f} {'met' if self.ratio <= self.goal else 'MISSED'}"
        return f"{self.name:<36}{self.median_us:>11.1f}{self.floor_us:>11.1f}{self.ratio:>8.2f}{goal}"


def time_row(row: Row, device: torch.device, peaks: Peaks, rounds: int, earlier: Sequence[Timing]) -> Timing:
    first = row.build()
    on_gpu = device.type == "cuda"
    num_inputs = min(_MAX_INPUTS, 1 + math.ceil(_COLD_BYTES / first.num_bytes)) if on_gpu else 2
    calls = [first, *(row.build() for _ in range(num_inputs - 1))]
    floor_s = peaks.floor_s(first.num_bytes, first.flop)
    all_us = tuple(1e6 * s for s in seconds_per_call(calls, device, rounds=rounds, floor_s=floor_s))
    median_us = statistics.median(all_us)
    base_us = next((timing.median_us for timing in earlier if timing.name == row.against), floor_s * 1e6)
    return Timing(
        row.name, first.op, first.num_bytes, first.flop, floor_s * 1e6, median_us, all_us, median_us / base_us,
        row.against, row.goal,
    )  # fmt: skip


def check_text(findings: Sequence[Finding]) -> str:
    lines = [f"{'check against float64':<48}{'largest error':>14}"]
    lines += [f"{found.name:<48}{found.error:>14.1e}  {found.failure or 'ok'}" for found in findings]
    return "\n".join(lines)


def timing_text(timings: Sequence[Timing], peaks: Peaks) -> str:
    lines = [
        f"floors: {peaks.bytes_per_s / 1e9:.0f} GB/s, {peaks.flop_per_s / 1e12:.1f} TFLOP/s",
        f"{'row':<36}{'median us':>11}{'floor us':>11}{'ratio':>8}{'goal':>7}",
    ]
    for timing in timings:
        lines.append(str(timing) + (f"   (ratio to {timing.against})" if timing.against else ""))
    return "\n".join(lines)


def document(
    device: torch.device, tiny: bool, measured: Peaks, floors: Peaks, findings: Sequence[Finding],
    timings: Sequence[Timing],
) -> dict[str, Any]:  # fmt: skip
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return {
        **stamped(SCHEMA),
        "device": name,
        "tiny": tiny,
        "measured_peaks": asdict(measured),
        "floors": asdict(floors),
        "checks": [asdict(found) for found in findings],
        "rows": [asdict(timing) for timing in timings],
    }


def run(device: torch.device, *, tiny: bool, rounds: int, folder: Path) -> bool:
    """Check, time, print and save; whether every check passed."""
    torch.manual_seed(0)
    findings = [run_check(check) for check in tqdm(checks(device), desc="checks", leave=False)]
    print(check_text(findings), end="\n\n")
    measured = measured_peaks(device, tiny=tiny)
    floors = stated_peaks(device) or measured
    timings: list[Timing] = []
    for row in tqdm(goal_rows(device, tiny=tiny), desc="rows", leave=False):
        timings.append(time_row(row, device, floors, rounds, timings))
    print(timing_text(timings, floors), end="\n\n")
    result = document(device, tiny, measured, floors, findings, timings)
    print(f"saved {write_result(result, f'kernels-{device.type}', folder=folder)}")
    return not any(found.failure for found in findings)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small shapes, few rounds: shows that all of it runs")
    parser.add_argument("--rounds", type=int, help="timings a row; the median counts (default 50, tiny 3)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON file")
    return parser


def main(args: argparse.Namespace) -> None:
    rounds = args.rounds or (3 if args.tiny else 50)
    if not run(chosen_device(args.device), tiny=args.tiny, rounds=rounds, folder=args.results):
        raise SystemExit(1)


if __name__ == "__main__":
    main(parser().parse_args())

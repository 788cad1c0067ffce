"""Slots by iterations, from traces that engines wrote (`trace: path` in the configuration), one panel a file.

python -m bench.plots trace.jsonl --out slots.png
python -m bench.plots a.jsonl b.jsonl --by time --first 200 --steps 120 --out slots.png
"""

import argparse
from dataclasses import replace
from pathlib import Path

from bench.plots.slots import slots_figure
from bench.plots.style import save
from bench.step_trace import StepTrace, read_step_trace


def part_of(trace: StepTrace, first: int, steps: int) -> StepTrace:
    """The steps [first, first + steps). A request that ended later has no end mark here."""
    kept = trace.steps[first : first + steps]
    if not kept:
        raise SystemExit(f"the trace has {len(trace.steps)} steps, none from {first} on")
    ended = {request_id: at_s for request_id, at_s in trace.finished_s.items() if at_s <= kept[-1].ended_s + 1e-3}
    return replace(trace, steps=kept, finished_s=ended)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.plots", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("traces", type=Path, nargs="+")
    parser.add_argument("--by", choices=["iteration", "time"], default="iteration", help="the horizontal axis")
    parser.add_argument("--first", type=int, default=0, help="first step drawn")
    parser.add_argument("--steps", type=int, default=400, help="most steps drawn")
    parser.add_argument("--out", type=Path, default=Path("slots.png"))
    args = parser.parse_args()
    traces = []
    for path in args.traces:
        trace = read_step_trace(path)
        traces.append((f"{path.name} ({trace.header['policy']})", part_of(trace, args.first, args.steps)))
    print(f"saved {save(slots_figure(traces, title='Slots by iterations', by=args.by), args.out)}")


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as error:
        raise SystemExit(str(error)) from None

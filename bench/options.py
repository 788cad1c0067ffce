"""Command-line options that all benchmarks of a served model share: which workload, how large, by what seed."""

import argparse
import asyncio
from collections.abc import Coroutine
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import aiohttp

from bench.metrics import Objective
from bench.replay import RequestFailed
from bench.report import RESULTS
from bench.vocabulary import load_vocabulary
from bench.workloads import SETTINGS, Trace, Workload, WorkloadSpec, build_workload
from engine.api import EngineError

# Options that override a parameter of the setting; a workload that lacks the parameter refuses the option.
_OVERRIDES: dict[str, type] = {
    "num_requests": int,
    "num_users": int,
    "num_turns": int,
    "prompt_len": int,
    "long_prompt_len": int,
    "mean_output_len": int,
    "output_len": int,
    "cap": int,
    "rate": float,
    "speedup": float,
}


def workload_options() -> argparse.ArgumentParser:
    """A parent parser."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--model", default="demo", help="demo, a Hugging Face id, a local folder or a .gguf file")
    parser.add_argument("--workload", nargs="+", choices=[*SETTINGS["cpu"], Trace.name], default=["burst"])
    parser.add_argument("--setting", choices=list(SETTINGS), default="cpu", help="size of the workload")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trace-file", help="for --workload trace: JSONL or CSV")
    for name, kind in _OVERRIDES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, help="instead of the setting's")
    parser.add_argument("--ttft-objective-s", type=float, default=2.0, help="a good request's TTFT is at most this")
    parser.add_argument("--tpot-objective-s", type=float, default=0.25, help="and its TPOT at most this")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON file")
    return parser


def workload_specs(args: argparse.Namespace) -> list[WorkloadSpec]:
    """The chosen workloads in the chosen setting, with those parameters of the command line that they have."""
    given = {key: getattr(args, key) for key in _OVERRIDES if getattr(args, key) is not None}
    specs = [_base_spec(args, name) for name in args.workload]
    known = {name: {field.name for field in fields(spec)} for name, spec in zip(args.workload, specs, strict=True)}
    if unused := given.keys() - set().union(*known.values()):
        raise SystemExit(f"no chosen workload has a parameter {', '.join(sorted(unused))}; they have {known}")
    return [
        replace(spec, **{key: value for key, value in given.items() if key in known[spec.name]}) for spec in specs
    ]


def _base_spec(args: argparse.Namespace, name: str) -> WorkloadSpec:
    if name != Trace.name:
        return SETTINGS[args.setting][name]
    if args.trace_file is None:
        raise SystemExit("--workload trace needs --trace-file")
    return Trace(args.trace_file)


def chosen_workloads(args: argparse.Namespace, *seeds: int) -> list[list[Workload]]:
    """The chosen workloads, by each of the seeds, their prompts drawn from the model's vocabulary."""
    specs = workload_specs(args)
    vocabulary = load_vocabulary(args.model)
    return [[build_workload(spec, vocabulary, seed) for spec in specs] for seed in seeds]


def objective(args: argparse.Namespace) -> Objective:
    return Objective(args.ttft_objective_s, args.tpot_objective_s)


def run_until_interrupted(main: Coroutine[Any, Any, None]) -> None:
    """Run `main`; Ctrl-C and a server that is not there end it without a stack trace."""
    try:
        asyncio.run(main)
    except (RequestFailed, EngineError, aiohttp.ClientError) as error:
        raise SystemExit(str(error)) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None

"""Command-line options of `python -m bench.peers`, and the workloads and settings they stand for."""

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bench.peers.lineup import SYSTEMS, Settings, file_type_of
from bench.peers.turns import label_of
from bench.result_file import RESULTS
from bench.workloads import SETTINGS, Burst, Workload, WorkloadSpec, build_workload
from engine.api import resolve_model

OTHERS = ("poisson", "long_short", "chat")             # our servers alone, once
_CAPS = {"cpu": (128, 384), "seed": (128, 512)}
_BLOCK = 256                                           # tokens; the longest request is rounded up to it


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers", description=_description(), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo", help="demo, a Hugging Face id, a local folder or a .gguf file")
    parser.add_argument("--setting", choices=list(SETTINGS), default="cpu", help="size of the workloads")
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS), metavar="SYSTEM")
    parser.add_argument("--workloads", nargs="+", choices=["burst", "single"], default=["burst", "single"])
    parser.add_argument("--caps", type=int, nargs="+", help="most output tokens of a burst (cpu: 128 384)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-others", action="store_true", help=f"skip {', '.join(OTHERS)}")
    parser.add_argument("--num-requests", type=int, help="of every workload, instead of the setting's: a quick try")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-threads", type=int, default=len(os.sched_getaffinity(0)), help="of every system")
    parser.add_argument("--batch-size", type=int, default=16, help="of transformers' static batches")
    parser.add_argument("--batch-tokens", type=int, default=512, help="of a step of transformers' continuous batching")
    parser.add_argument("--peer-dtype", default="float32", help="of both transformers peers")
    parser.add_argument("--kv-tokens", type=int, default=32768, help="that a system's KV cache holds")
    parser.add_argument("--reserve-gib", type=float, default=6.0, help="idle systems are ended to start one with this")
    parser.add_argument("--turn-limit-s", type=float, default=3600, help="a system whose turn takes longer is killed")
    parser.add_argument("--ttft-objective-s", type=float, default=2.0, help="a good request's TTFT is at most this")
    parser.add_argument("--tpot-objective-s", type=float, default=0.25, help="and its TPOT at most this")
    parser.add_argument("--install-only", action="store_true", help="install the peers, convert the model, and end")
    parser.add_argument("--name", help="of the folder, after the date")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the run's folder")
    return parser


def _description() -> str:
    names = "\n".join(f"  {name:<26}{entry.label}" for name, entry in SYSTEMS.items())
    return (
        "Ours and every peer on the same workloads in one run, taking turns; the ratios come first.\n\n"
        "python -m bench.peers --model demo --setting cpu\n"
        "python -m bench.peers --systems transformers_static --repeats 1\n\n"
        f"systems:\n{names}"
    )


def settings_of(args: argparse.Namespace, workloads: Iterable[Workload]) -> Settings:
    """Fetches the model if need be. Raises ConfigError."""
    path = resolve_model(args.model).path
    longest = max(len(r.prompt_token_ids) + r.output_len for workload in workloads for r in workload.requests)
    return Settings(
        model=args.model, model_path=path, file_type=file_type_of(path), num_threads=args.num_threads,
        max_len=-(-longest // _BLOCK) * _BLOCK, kv_tokens=args.kv_tokens, batch_size=args.batch_size,
        peer_dtype=args.peer_dtype, batch_tokens=args.batch_tokens,
        request_timeout_s=args.turn_limit_s,
    )  # fmt: skip


def compared_workloads(args: argparse.Namespace, vocabulary: Sequence[int], repeat: int) -> Mapping[str, Workload]:
    """label -> workload of one repeat. Each has a seed of its own: no prefix cache has seen any of its prompts."""
    setting = SETTINGS[args.setting]
    specs: list[WorkloadSpec] = []
    for name in args.workloads:
        spec = setting[name]
        caps = args.caps or _CAPS[args.setting]
        specs += [replace(spec, cap=cap) for cap in caps] if isinstance(spec, Burst) else [spec]
    return _built(args, specs, vocabulary, args.seed + 100 * repeat)


def other_workloads(args: argparse.Namespace, vocabulary: Sequence[int]) -> Mapping[str, Workload]:
    """label -> workload, of those that only our servers run, and only once."""
    if args.no_others:
        return {}
    specs = [SETTINGS[args.setting][name] for name in OTHERS]
    return _built(args, specs, vocabulary, args.seed + 50)


def _built(
    args: argparse.Namespace, specs: Sequence[WorkloadSpec], vocabulary: Sequence[int], seed: int
) -> Mapping[str, Workload]:
    if args.num_requests is not None:
        specs = [replace(spec, **_fewer(spec, args.num_requests)) for spec in specs]
    workloads = [build_workload(spec, vocabulary, seed + i) for i, spec in enumerate(specs)]
    return {label_of(workload): workload for workload in workloads}


def _fewer(spec: WorkloadSpec, num_requests: int) -> dict[str, int]:
    if hasattr(spec, "num_requests"):
        return {"num_requests": num_requests}
    return {"num_users": num_requests, "num_turns": 1}

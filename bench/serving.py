"""Load a running server over HTTP, or the engine in this process, with a workload; print and save what came of it.

python -m bench.serving --url http://127.0.0.1:8000 --workload burst --setting cpu --cap 128
"""

import argparse
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from bench.http_client import HttpClient
from bench.options import chosen_workloads, objective, run_until_interrupted, workload_options
from bench.report import result_document, run_text, save
from bench.systems import EngineSystem, HttpSystem, System, measure, warm_up
from bench.workloads import Workload
from engine.api import EngineConfig


def http_options() -> argparse.ArgumentParser:
    """A parent parser for benchmarks that load a running server."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--served-model-name", help="the model to ask for; default: the first that /v1/models lists")
    parser.add_argument("--api-key-file", type=Path)
    parser.add_argument("--timeout-s", type=float, default=1800, help="a request without its last token by then failed")
    parser.add_argument("--server-pid", type=int, help="the launcher's process, to measure the server's memory")
    return parser


def http_client(args: argparse.Namespace) -> HttpClient:
    api_key = args.api_key_file.read_text().strip() if args.api_key_file else None
    return HttpClient(args.url, model=args.served_model_name, api_key=api_key, timeout_s=args.timeout_s)


@contextlib.asynccontextmanager
async def open_system(args: argparse.Namespace) -> AsyncIterator[System]:
    if args.target == "engine":
        config = EngineConfig.model_validate({"model": args.model, "dtype": args.dtype})
        async with EngineSystem.start(config) as engine:
            yield engine
    else:
        async with HttpSystem.connect(http_client(args), server_pid=args.server_pid) as server:
            yield server


async def run_workloads(system: System, workloads: Sequence[Workload], args: argparse.Namespace) -> None:
    """Warm up, then measure, print and save one run of each workload."""
    measurements = []
    await warm_up(system, workloads[0])
    for workload in workloads:
        measurements.append(await measure(system, workload, objective(args)))
        print(run_text(measurements[-1]), end="\n\n")
    document = result_document(measurements, {system.name: system.description}, objective(args))
    print(f"saved {save(document, folder=args.results)}")


async def run(args: argparse.Namespace) -> None:
    [workloads] = chosen_workloads(args, args.seed)
    async with open_system(args) as system:
        await run_workloads(system, workloads, args)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[workload_options(), http_options()],
    )
    parser.add_argument("--target", choices=["http", "engine"], default="http")
    parser.add_argument("--dtype", default="auto", help="for --target engine")
    return parser


if __name__ == "__main__":
    run_until_interrupted(run(parser().parse_args()))

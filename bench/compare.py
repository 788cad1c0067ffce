"""Our server and peers on the same workloads in one run, taking turns; prints the ratio first.

python -m bench.compare --url http://127.0.0.1:8000 --against transformers_static --workload burst single --repeats 3

Every repeat has prompts of its own (seed + repeat), so that no prefix cache answers from the repeat before.
"""

import argparse
import contextlib

from bench.options import chosen_workloads, objective, run_until_interrupted, workload_options
from bench.peers.options import peer_arguments, peer_options
from bench.peers.packages import PEERS
from bench.peers.process import PeerSystem, peer_command
from bench.report import comparison_text, ratios, result_document, save
from bench.serving import http_client, http_options
from bench.systems import HttpSystem, Measurement, System, measure, warm_up


async def run(args: argparse.Namespace) -> None:
    rounds = chosen_workloads(args, *range(args.seed, args.seed + args.repeats))
    command = peer_command(args.against, peer_arguments(args))
    measurements: list[Measurement] = []
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(HttpSystem.connect(http_client(args), server_pid=args.server_pid))
        peer = await stack.enter_async_context(PeerSystem.start(args.against, command))
        systems: list[System] = [server, peer]
        for system in systems:
            await warm_up(system, rounds[0][0])
        for repeat, workloads in enumerate(rounds):
            for workload in workloads:
                for system in systems:
                    measurements.append(await measure(system, workload, objective(args), repeat=repeat))
        descriptions = {system.name: system.description for system in systems}
    found = ratios(measurements, against=args.against)
    print(comparison_text(measurements, found))
    print(f"saved {save(result_document(measurements, descriptions, objective(args), found), folder=args.results)}")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[workload_options(), http_options(), peer_options()],
    )
    parser.add_argument("--against", choices=PEERS, default="transformers_static")
    parser.add_argument("--repeats", type=int, default=3)
    return parser


if __name__ == "__main__":
    run_until_interrupted(run(parser().parse_args()))

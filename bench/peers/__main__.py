"""A workload through a peer, in a process of its own; prints and saves what came of it.

python -m bench.peers transformers_static --workload burst --setting cpu --cap 128
"""

import argparse

from bench.options import chosen_workloads, run_until_interrupted, workload_options
from bench.peers.options import peer_arguments, peer_options
from bench.peers.packages import PEERS
from bench.peers.process import PeerSystem, peer_command
from bench.serving import run_workloads


async def run(args: argparse.Namespace) -> None:
    [workloads] = chosen_workloads(args, args.seed)
    async with PeerSystem.start(args.peer, peer_command(args.peer, peer_arguments(args))) as peer:
        await run_workloads(peer, workloads, args)


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[workload_options(), peer_options()],
    )
    parser.add_argument("peer", choices=PEERS)
    return parser


if __name__ == "__main__":
    run_until_interrupted(run(parser().parse_args()))

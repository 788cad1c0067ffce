"""Command-line options of peers, and what they become on the command line of the peer's own process."""

import argparse
import os

from engine.api import resolve_model


def peer_options() -> argparse.ArgumentParser:
    """A parent parser."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--batch-size", type=int, default=16, help="of the peer's static batches")
    parser.add_argument("--peer-dtype", default="float32")
    parser.add_argument("--num-threads", type=int, default=len(os.sched_getaffinity(0)), help="of the peer")
    return parser


def peer_arguments(args: argparse.Namespace) -> list[str]:
    return [
        "--model", str(resolve_model(args.model).path),
        "--batch-size", str(args.batch_size),
        "--dtype", args.peer_dtype,
        "--num-threads", str(args.num_threads),
    ]

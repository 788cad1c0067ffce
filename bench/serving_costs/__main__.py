"""What serving costs beside the engine: start-up, memory, a prefix computed once, streams over HTTP.

python -m bench.serving_costs --model demo
python -m bench.serving_costs --model demo --dtypes float16 --starts 3

For each dtype, in this order: the engine in a process of its own with half of the streams; an empty Serve application
and our server, started in turn; on the server, prompts that share prefixes, then all streams; the engine again with
the other half. Needs a machine that does nothing else, and the memory of one server.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from prometheus_client.parser import text_string_to_metric_families

from bench.goals import goal_table
from bench.http_client import HttpClient
from bench.memory import tree_pss_bytes
from bench.options import run_until_interrupted
from bench.replay import RequestFailed
from bench.result_file import RESULTS, stamped, write_result
from bench.servers import Started, empty_application, our_server
from bench.serving_costs.costs import Costs, Memory, Start
from bench.serving_costs.in_process import InProcess, run_in_process, stream_rates
from bench.serving_costs.workloads import SharedPrefix, Streams
from bench.systems import HttpSystem
from bench.vocabulary import load_vocabulary
from bench.workloads import Workload, WorkloadRequest, build_workload

SCHEMA = "conveyor-serving-costs/1"
_FIRST_PROMPT_LEN = 16


@dataclass(frozen=True, slots=True)
class UnderLoad:
    """What one server showed of itself once it was started."""

    missed_ttft_s: tuple[float, ...]
    found_ttft_s: tuple[float, ...]
    prefix_cache_hit_rate: float | None
    output_tokens_per_s: tuple[float, ...]
    written_share: float                           # of the KV pool's blocks, those that hold something
    pss_bytes: int


async def measure_costs(args: argparse.Namespace, dtype: str, vocabulary: Sequence[int]) -> Costs:
    config = {"model": args.model, "dtype": dtype}
    spec = Streams(args.streams, args.stream_prompt_len, args.stream_output_len)
    streams = [build_workload(spec, vocabulary, args.seed + repeat) for repeat in range(args.repeats)]
    shared = SharedPrefix(args.pairs, args.prefix_len, args.rest_len)
    prefixes = build_workload(shared, vocabulary, args.seed + args.repeats)     # none of the streams' prompts again
    first = WorkloadRequest(0, tuple(vocabulary[:_FIRST_PROMPT_LEN]), 1)
    half = len(streams) // 2
    before = run_in_process(config, streams[:half])
    starts: list[Start] = []
    while len(starts) < args.starts:
        empty_s = empty_start_s()
        with TemporaryDirectory(prefix="bench-") as folder, our_server(Path(folder, "ours.log"), config) as server:
            starts.append(await timed_start(server, empty_s, first))
            if len(starts) == args.starts:
                load = await under_load(server, prefixes, streams)
    after = run_in_process(config, streams[half:])
    return costs_of(dtype, starts, load, before, after)


def empty_start_s() -> float:
    with TemporaryDirectory(prefix="bench-") as folder, empty_application(Path(folder, "empty.log")) as server:
        return server.wait_for_http()


async def timed_start(server: Started, empty_s: float, first: WorkloadRequest) -> Start:
    """Wait until the server says that it is ready, then for the first token of the first request."""
    ready_s = server.wait_for_text("\nready ")
    deliveries_s: list[float] = []
    async with HttpClient(server.url) as client:
        await client.send(first, lambda: deliveries_s.append(server.age_s))
    return Start(empty_s, ready_s, deliveries_s[0])


async def under_load(server: Started, prefixes: Workload, streams: Sequence[Workload]) -> UnderLoad:
    client = HttpClient(server.url)
    async with HttpSystem.connect(client) as system:
        records, figures = await system.run(prefixes, lambda record: None)
        if failures := [record.error for record in records if record.error is not None]:
            raise RequestFailed(f"{len(failures)} prompts with a shared prefix failed: {failures[0]}")
        rates = await stream_rates(system, streams)
        written_share = kv_written_share(await client.get_text("/metrics"))
        pss_bytes = tree_pss_bytes(server.process.pid)
    ttft_s = [record.ttft_s for record in records]
    return UnderLoad(
        tuple(ttft_s[::2]), tuple(ttft_s[1::2]), figures.prefix_cache_hit_rate, tuple(rates), written_share, pss_bytes
    )


def kv_written_share(metrics: str) -> float:
    """Blocks in use and idle ones that keep a prefix, as a share of the pool, by a page of our metrics."""
    values = {
        sample.name: sample.value for family in text_string_to_metric_families(metrics) for sample in family.samples
    }
    written = values["conveyor_kv_blocks_used"] + values["conveyor_kv_blocks_cached"]
    return float(written / values["conveyor_kv_blocks_total"])


def costs_of(
    dtype: str, starts: Sequence[Start], load: UnderLoad, before: InProcess, after: InProcess
) -> Costs:
    plan = after.plan
    memory = Memory(
        pss_bytes=load.pss_bytes,
        weights_bytes=plan["weights_bytes"],
        kv_bytes=plan["kv_bytes"],
        kv_written_bytes=round(load.written_share * plan["kv_bytes"]),
    )
    return Costs(
        dtype=dtype,
        starts=tuple(starts),
        memory=memory,
        missed_ttft_s=load.missed_ttft_s,
        found_ttft_s=load.found_ttft_s,
        prefix_cache_hit_rate=load.prefix_cache_hit_rate,
        http_tokens_per_s=load.output_tokens_per_s,
        in_process_tokens_per_s=before.output_tokens_per_s + after.output_tokens_per_s,
    )


async def run(args: argparse.Namespace) -> None:
    vocabulary = load_vocabulary(args.model)
    found: list[Costs] = []
    for dtype in args.dtypes:
        found.append(await measure_costs(args, dtype, vocabulary))
        print(found[-1], end="\n\n", flush=True)
    print(goal_table([goal for costs in found for goal in costs.goals()]), end="\n\n")
    names = ("model", "starts", "pairs", "prefix_len", "rest_len", "streams", "stream_prompt_len", "stream_output_len")
    document = {
        **stamped(SCHEMA),
        "parameters": {name: getattr(args, name) for name in (*names, "repeats", "seed")},
        "servers": [costs.to_json() for costs in found],
    }
    print(f"saved {write_result(document, 'serving-costs', folder=args.results)}")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help="whatever the YAML may name; fetched before anything is timed")
    parser.add_argument("--dtypes", nargs="+", default=["float16", "bfloat16", "int8"])
    parser.add_argument("--starts", type=int, default=2, help="of an empty app and of ours in turn; the median counts")
    parser.add_argument("--pairs", type=int, default=3, help="prefixes, each sent twice")
    parser.add_argument("--prefix-len", type=int, default=1000)
    parser.add_argument("--rest-len", type=int, default=16, help="prompt tokens behind the prefix")
    parser.add_argument("--streams", type=int, default=32, help="at once")
    parser.add_argument("--stream-prompt-len", type=int, default=64)
    parser.add_argument("--stream-output-len", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=2, help="of all streams, each with prompts of its own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON file")
    return parser


if __name__ == "__main__":
    run_until_interrupted(run(parser().parse_args()))

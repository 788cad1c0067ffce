"""The step loop's own Python: schedule, prepare and update around a model that computes nothing; and a long queue.

python -m bench.step_loop
python -m bench.step_loop --model demo --policies chunked fair --queued 10000 100000

Part one fills a batch and times steps in which all of it decodes, by part. With `--model` the same steps are timed on
that model, and the three parts are given as a share of them. Part two keeps 32 requests running, one of which ends in
every step and makes room for the next, before ever longer queues: bytes a queued request, and the step's time.
"""

import argparse
import gc
import itertools
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from bench.goals import Goal, goal_table
from bench.null_engine import build_null_core
from bench.result_file import RESULTS, stamped, write_result
from engine.build import build_core
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.errors import ConfigError
from engine.request import GenerationRequest
from engine.sampling.params import SamplingParams
from engine.scheduling.policies import policy_names

SCHEMA = "conveyor-step-loop/1"
PARTS = ("schedule", "prepare", "forward", "sample", "update")
OWN_PARTS = ("schedule", "prepare", "update")
TOKEN_IDS = (257, 512)                 # in every vocabulary, and objects of their own, as those of clients are
_WARM_UP_STEPS = 10
_QUEUE_SEATS = 32
_QUEUE_OUTPUT_LEN = 32
_BASE_QUEUE = 1000                     # requests behind the steps that longer queues are compared with


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of one step, by part. `update` is all that the engine does not count elsewhere: books, text, outputs."""

    total_s: float
    parts_s: Mapping[str, float]

    @property
    def own_s(self) -> float:
        return sum(self.parts_s[part] for part in OWN_PARTS)


@dataclass(frozen=True, slots=True)
class BatchRow:
    """Decode steps of one batch: medians in milliseconds."""

    model: str
    batch: int
    own_ms: float                      # schedule + prepare + update
    parts_ms: Mapping[str, float]
    step_ms: float
    p99_ms: float
    max_ms: float

    def __str__(self) -> str:
        parts = "".join(f"{self.parts_ms[part]:>10.3f}" for part in PARTS)
        return (
            f"{self.model:<8}{self.batch:>6}{self.own_ms:>10.3f}{parts}{self.step_ms:>10.3f}{self.p99_ms:>10.3f}"
            f"{self.max_ms:>10.3f}"
        )


@dataclass(frozen=True, slots=True)
class QueueRow:
    """Own time of steps with `num_queued` requests behind: one of the running ends in each, one of the queue starts."""

    policy: str
    num_queued: int
    bytes_per_request: float | None    # of those added since the row before; None: the first row
    add_us: float                      # of one request
    own_ms: float                      # median
    p99_ms: float
    max_ms: float

    def __str__(self) -> str:
        size = "" if self.bytes_per_request is None else f"{self.bytes_per_request:.0f}"
        return (
            f"{self.policy:<24}{self.num_queued:>9}{size:>12}{self.add_us:>9.1f}{self.own_ms:>10.3f}"
            f"{self.p99_ms:>10.3f}{self.max_ms:>10.3f}"
        )


def timed_steps(core: EngineCore, num_steps: int) -> list[StepTime]:
    """The next steps, each timed from outside and by the engine's own account. Raises RuntimeError if one is idle."""
    times = []
    for _ in range(num_steps):
        before = core.stats().step_time_s
        begun_s = time.perf_counter()
        core.step()
        total_s = time.perf_counter() - begun_s
        if core.wait_until_s is not None:
            raise RuntimeError("a step had nothing to compute")
        after = core.stats().step_time_s
        parts_s = {part: after.get(part, 0.0) - before.get(part, 0.0) for part in PARTS if part != "update"}
        times.append(StepTime(total_s, parts_s | {"update": total_s - sum(parts_s.values())}))
    return times


def requests(prompt_len: int, output_lens: Iterator[int], seed: int) -> Iterator[GenerationRequest]:
    """Endless requests with prompts of their own and, like a client's, every value an object of its own."""
    rng = np.random.default_rng(seed)
    for index, output_len in enumerate(output_lens):
        prompt = tuple(rng.integers(*TOKEN_IDS, prompt_len).tolist())
        sampling = SamplingParams(max_tokens=output_len, temperature=0.0, ignore_eos=True)
        yield GenerationRequest(f"request-{index}", prompt, sampling)


def time_batch(core: EngineCore, model: str, batch: int, num_steps: int, args: argparse.Namespace) -> BatchRow:
    """Fill the engine with `batch` requests and time decode steps of all of them."""
    source = requests(args.prompt_len, itertools.repeat(_most_tokens(num_steps)), args.seed)
    for generation in itertools.islice(source, batch):
        core.add_request(generation)
    while len(core.step()) < batch:
        pass
    timed_steps(core, _WARM_UP_STEPS)
    times = timed_steps(core, num_steps)
    core.abort_all()
    return BatchRow(
        model, batch, _median_ms([t.own_s for t in times]),
        {part: _median_ms([t.parts_s[part] for t in times]) for part in PARTS},
        *_figures_ms([t.total_s for t in times]),
    )  # fmt: skip


def _most_tokens(num_steps: int) -> int:
    """So many that none ends while the prompts of others are computed or steps are timed."""
    return num_steps + 10 * _WARM_UP_STEPS


def real_core(args: argparse.Namespace, batch: int) -> EngineCore:
    length = args.prompt_len + _most_tokens(args.model_steps)
    return build_core(EngineConfig.model_validate({
        "model": args.model,
        "dtype": args.dtype,
        "scheduler": {"max_num_seqs": batch, "max_num_batched_tokens": max(512, batch), "watermark": 0.0},
        "kv_cache": {"capacity_tokens": batch * (length + 64)},
        "max_model_len": length + 64,
    }))


def time_queue(policy: str, args: argparse.Namespace) -> list[QueueRow]:
    """Steps of one engine as its queue grows."""
    torch.set_num_threads(1)
    core = build_null_core(
        _QUEUE_SEATS, scheduler={"policy": policy}, max_num_waiting=max(args.queued) + 10 * args.steps + _BASE_QUEUE
    )
    staggered = itertools.chain(range(1, _QUEUE_SEATS + 1), itertools.repeat(_QUEUE_OUTPUT_LEN))
    source = requests(args.queued_prompt_len, staggered, args.seed)
    rows: list[QueueRow] = []
    for num_queued in (_BASE_QUEUE, *sorted(args.queued)):
        missing = num_queued - core.stats().num_requests_waiting
        before_bytes, begun_s = _memory_bytes(), time.perf_counter()
        for generation in itertools.islice(source, missing):
            core.add_request(generation)
        add_us = 1e6 * (time.perf_counter() - begun_s) / missing
        bytes_per_request = (_memory_bytes() - before_bytes) / missing if rows else None
        timed_steps(core, _WARM_UP_STEPS)
        times = [t.own_s for t in timed_steps(core, args.steps)]
        rows.append(QueueRow(policy, num_queued, bytes_per_request, add_us, *_figures_ms(times)))
    return rows


def in_a_process_of_its_own(call: Callable[..., list[QueueRow]], *arguments: Any) -> list[QueueRow]:
    """A queue would find the memory of the one before, and take none."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(call, *arguments).result()


def _memory_bytes() -> int:
    gc.collect()
    size: int = psutil.Process().memory_info().rss
    return size


def _median_ms(seconds: Sequence[float]) -> float:
    return 1e3 * statistics.median(seconds)


def _figures_ms(seconds: Sequence[float]) -> tuple[float, float, float]:
    """Median, 99th percentile and maximum."""
    return _median_ms(seconds), 1e3 * float(np.percentile(seconds, 99)), 1e3 * max(seconds)


def goals(batches: Sequence[BatchRow], queues: Sequence[QueueRow]) -> list[Goal]:
    null = {row.batch: row for row in batches if row.model == "null"}
    found = []
    if 256 in null:
        found.append(Goal("schedule + prepare + update, 256 sequences", null[256].own_ms, 1.0, "ms"))
    for row in batches:
        if row.model != "null":
            share = 100 * row.own_ms / row.step_ms
            found.append(Goal(f"the same as a share of a step of {row.model}, {row.batch} sequences", share, 3.0, "%"))
    for policy in dict.fromkeys(row.policy for row in queues):
        base, *longer = [row for row in queues if row.policy == policy]
        last = longer[-1]
        slower = last.own_ms / base.own_ms
        found.append(Goal(f"{policy}: own time with {last.num_queued} queued over {base.num_queued}", slower, 1.1, "x"))
        if len(longer) > 1 and longer[-2].bytes_per_request and last.bytes_per_request:
            growth = last.bytes_per_request / longer[-2].bytes_per_request
            found.append(Goal(f"{policy}: bytes a request, the last queue's over the one before", growth, 1.1, "x"))
    return found


def run(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)               # what little a null step computes does not wait for threads
    batches = []
    for batch in args.batches:
        batches.append(time_batch(build_null_core(batch), "null", batch, args.steps, args))
    if args.model:
        core = real_core(args, args.model_batch)
        batches.append(time_batch(core, args.model, args.model_batch, args.model_steps, args))
        core.close()
    print(
        f"{'model':<8}{'batch':>6}{'own ms':>10}" + "".join(f"{part:>10}" for part in PARTS)
        + f"{'step ms':>10}{'p99':>10}{'max':>10}"
    )  # fmt: skip
    print(*batches, sep="\n", end="\n\n", flush=True)
    queues = []
    print(f"{'policy':<24}{'queued':>9}{'bytes each':>12}{'add us':>9}{'own ms':>10}{'p99':>10}{'max':>10}")
    for policy in policy_names() if args.policies == ["all"] else args.policies:
        queues += in_a_process_of_its_own(time_queue, policy, args)
        print(*queues[-1 - len(args.queued):], sep="\n", flush=True)
    found = goals(batches, queues)
    print(goal_table(found), end="\n\n")
    print(f"saved {write_result(document(args, batches, queues, found), 'step-loop', folder=args.results)}")


def document(
    args: argparse.Namespace, batches: Sequence[BatchRow], queues: Sequence[QueueRow], found: Sequence[Goal]
) -> dict[str, Any]:
    settings = ("prompt_len", "queued_prompt_len", "steps", "model_steps", "seed", "dtype")
    return {
        **stamped(SCHEMA),
        "parameters": {name: getattr(args, name) for name in settings},
        "batches": [asdict(row) for row in batches],
        "queues": [asdict(row) for row in queues],
        "goals": [goal.to_json() for goal in found],
    }


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 256], help="running sequences")
    parser.add_argument("--steps", type=int, default=200, help="steps timed")
    parser.add_argument("--prompt-len", type=int, default=64)
    parser.add_argument("--model", help="also time steps of this model, as the YAML names it")
    parser.add_argument("--dtype", default="auto", help="of --model")
    parser.add_argument("--model-batch", type=int, default=32, help="running sequences of --model")
    parser.add_argument("--model-steps", type=int, default=20, help="steps of --model timed")
    parser.add_argument("--policies", nargs="+", default=["chunked"], help="whose queue grows, or: all")
    parser.add_argument("--queued", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], help="above 1000")
    parser.add_argument("--queued-prompt-len", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON file")
    return parser


if __name__ == "__main__":
    try:
        run(parser().parse_args())
    except ConfigError as error:
        raise SystemExit(str(error)) from None

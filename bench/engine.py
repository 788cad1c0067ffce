"""Decode steps of the whole engine, by batch and context, against what memory allows; no server, no checkpoint.

python -m bench.engine --device cuda --model random:llama-8b
python -m bench.engine --device cpu --tiny

A step reads every weight and the keys and values of every running request once: floor = those bytes / the bandwidth
that is measured beforehand. Needs what `bench.kernels` needs.
"""

import argparse
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from bench.result_file import RESULTS, stamped, write_result
from bench.timing import Peaks, chosen_device, measured_peaks
from engine.build import build_core
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.errors import ConfigError
from engine.kv_cache.tensors import kv_bytes_per_token
from engine.model.capacity import product_bytes
from engine.model.description import ModelDescription, describe_model
from engine.model.hub import resolve
from engine.model.spec import tensor_shapes
from engine.request import GenerationRequest
from engine.sampling.params import SamplingParams

SCHEMA = "conveyor-engine/1"
PARTS = ("schedule", "prepare", "forward", "sample", "output")
_WARM_UP_STEPS = 4


@dataclass(frozen=True, slots=True)
class Cell:
    """One batch of equal requests."""

    batch: int
    context: int                         # tokens of each prompt
    steps: int                           # decode steps timed

    def max_tokens(self, budget: int) -> int:
        """Enough that no request ends while others' prompts are still computed or steps are timed."""
        prefill_steps = math.ceil(self.batch * self.context / max(1, budget - self.batch)) + 1
        return prefill_steps + _WARM_UP_STEPS + self.steps + 4

    def num_tokens(self, budget: int, block_size: int) -> int:
        """KV slots that the batch needs at its end."""
        return self.batch * (math.ceil((self.context + self.max_tokens(budget)) / block_size) + 1) * block_size


@dataclass(frozen=True, slots=True)
class CellResult:
    batch: int
    context: int
    step_ms: float                       # median
    floor_ms: float
    parts_ms: Mapping[str, float]        # mean; on a GPU the host's time: what waits for the device holds its time too
    all_ms: tuple[float, ...]
    prefill_tokens_per_s: float

    def __str__(self) -> str:
        parts = "".join(f"{self.parts_ms[part]:>10.3f}" for part in PARTS)
        ratio, tokens_per_s = self.step_ms / self.floor_ms, self.batch / self.step_ms * 1e3
        return (
            f"{self.batch:>6}{self.context:>9}{self.step_ms:>10.3f}{self.floor_ms:>10.3f}{ratio:>8.2f}{parts}"
            f"{tokens_per_s:>11.0f}{self.prefill_tokens_per_s:>13.0f}"
        )


def step_bytes(description: ModelDescription, num_cached_tokens: float) -> float:
    """What one decode step must read: each product's weights once, and `num_cached_tokens` keys and values."""
    spec, dtypes, on_cpu = description.spec, description.dtypes, description.device.type == "cpu"
    shapes = {"lm_head.weight": (spec.vocab_size, spec.embedding_width), **tensor_shapes(spec)}
    looked_up = ("embedding.weight", "positions.weight")        # a row a token
    weights = sum(
        product_bytes(shape, dtypes, on_cpu)
        for name, shape in shapes.items()
        if name not in looked_up and len(shape) == 2
    )
    return weights + num_cached_tokens * kv_bytes_per_token(spec, dtypes.kv_cache)


def run_cell(
    core: EngineCore, cell: Cell, description: ModelDescription, peaks: Peaks, budget: int, seed: int
) -> CellResult:
    """Prefill the batch, then time steps in which all of it decodes."""
    vocabulary = description.spec.vocab_size
    prompts = np.random.default_rng(seed).integers(0, vocabulary, (cell.batch, cell.context)).tolist()
    sampling = SamplingParams(max_tokens=cell.max_tokens(budget), temperature=0.0, ignore_eos=True)
    num_tokens = dict.fromkeys((f"{cell.batch}x{cell.context}-{i}" for i in range(cell.batch)), cell.context)

    def step() -> None:
        for output in core.step():
            if output.is_finished:
                raise RuntimeError(f"{output.request_id} ended early: {output.finish_reason} {output.error or ''}")
            num_tokens[output.request_id] += len(output.token_ids)

    for request_id, prompt in zip(num_tokens, prompts, strict=True):
        core.add_request(GenerationRequest(request_id, tuple(prompt), sampling))
    begun_s = time.perf_counter()
    while min(num_tokens.values()) == cell.context:
        step()
    prefill_s = time.perf_counter() - begun_s
    for _ in range(_WARM_UP_STEPS):
        step()
    before, all_ms, floors_ms = core.stats().step_time_s, [], []
    for _ in range(cell.steps):
        floors_ms.append(1e3 * peaks.floor_s(step_bytes(description, sum(num_tokens.values()))))
        begun_s = time.perf_counter()
        step()
        all_ms.append(1e3 * (time.perf_counter() - begun_s))
    after = core.stats().step_time_s
    core.abort_all()
    parts_ms = {part: 1e3 * (after.get(part, 0.0) - before.get(part, 0.0)) / cell.steps for part in PARTS}
    return CellResult(
        cell.batch, cell.context, statistics.median(all_ms), statistics.median(floors_ms), parts_ms, tuple(all_ms),
        cell.batch * cell.context / prefill_s,
    )  # fmt: skip


def table(results: Sequence[CellResult], skipped: Sequence[Cell]) -> str:
    lines = [
        f"{'batch':>6}{'context':>9}{'step ms':>10}{'floor ms':>10}{'ratio':>8}"
        + "".join(f"{part:>10}" for part in PARTS) + f"{'tok/s':>11}{'prefill t/s':>13}",
        *map(str, results),
        *(f"{cell.batch:>6}{cell.context:>9}   does not fit the KV cache" for cell in skipped),
    ]  # fmt: skip
    return "\n".join(lines)


def cells(args: argparse.Namespace, max_model_len: int, budget: int) -> list[Cell]:
    """Every batch at every context that the model reaches."""
    steps = args.steps or (4 if args.tiny else 32)
    batches = args.batches or ([1, 4] if args.tiny else [1, 8, 64, 256])
    contexts = args.contexts or ([32, 128] if args.tiny else [512, 1024, 2048, 8192])
    found = [Cell(batch, context, steps) for context in contexts for batch in batches]
    return [cell for cell in found if cell.context + cell.max_tokens(budget) <= max_model_len]


def engine_config(args: argparse.Namespace, budget: int) -> EngineConfig:
    model = args.model or ("random:tiny" if args.tiny else "random:llama-8b")
    largest = max(args.batches or [256])
    return EngineConfig.model_validate({
        "model": model,
        "device": args.device,
        "dtype": args.dtype,
        "seed": args.seed,
        "max_model_len": args.max_model_len,
        "scheduler": {"policy": "chunked", "max_num_batched_tokens": budget, "max_num_seqs": largest, "watermark": 0.0},
        "kv_cache": {"prefix_caching": False, **({"capacity_tokens": 2048} if args.tiny else {})},
    })


def run(args: argparse.Namespace) -> None:
    device = chosen_device(args.device)
    budget = 64 if args.tiny else 8192
    config = engine_config(args, budget)
    description = describe_model(resolve(config.model), config, str(device))
    peaks = measured_peaks(device, tiny=args.tiny)
    begun_s = time.perf_counter()
    core = build_core(config)
    built_s = time.perf_counter() - begun_s
    capacity = core.stats().kv_capacity_tokens
    block_size = capacity // core.stats().kv_blocks_total
    print(
        f"{config.model}, {description.dtypes.weights}, {step_bytes(description, 0) / 1e9:.2f} GB read a step; "
        f"{peaks.bytes_per_s / 1e9:.0f} GB/s; KV cache {capacity} tokens; ready after {built_s:.1f} s"
    )
    results, skipped = [], []
    for cell in tqdm(cells(args, description.max_model_len, budget), desc="cells", leave=False):
        if cell.num_tokens(budget, block_size) > capacity:
            skipped.append(cell)
            continue
        results.append(run_cell(core, cell, description, peaks, budget, args.seed))
    print(table(results, skipped), end="\n\n")
    path = write_result(document(args, config, peaks, built_s, results, skipped), "engine", folder=args.results)
    print(f"saved {path}")


def document(
    args: argparse.Namespace, config: EngineConfig, peaks: Peaks, built_s: float, results: Sequence[CellResult],
    skipped: Sequence[Cell],
) -> dict[str, Any]:  # fmt: skip
    return {
        **stamped(SCHEMA),
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        "tiny": args.tiny,
        "config": config.model_dump(mode="json"),
        "measured_peaks": asdict(peaks),
        "ready_s": built_s,
        "cells": [asdict(result) for result in results],
        "did_not_fit": [asdict(cell) for cell in skipped],
    }


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--model", help="random:<shape>, or whatever the YAML may name (default random:llama-8b)")
    parser.add_argument("--tiny", action="store_true", help="random:tiny and a few small cells: shows that all runs")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--batches", type=int, nargs="+")
    parser.add_argument("--contexts", type=int, nargs="+")
    parser.add_argument("--steps", type=int, help="decode steps timed in each cell (default 32, tiny 4)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON file")
    return parser


if __name__ == "__main__":
    try:
        run(parser().parse_args())
    except ConfigError as error:
        raise SystemExit(str(error)) from None

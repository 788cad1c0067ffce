"""Where a step's time goes on a processor, kernel by kernel.

python -m bench.step_profile --model demo --dtypes float16 bfloat16 int8

Steps are computed call by call, never replayed from a tape, and every kernel's call is timed as the step thread sees
it: from the call until all threads are done. What is left of a step is Python and torch.
"""

import argparse
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.result_file import RESULTS, stamped, write_result
from engine.build import build_core
from engine.config import EngineConfig, prepare_process
from engine.core import EngineCore
from engine.errors import ConfigError
from engine.request import GenerationRequest
from engine.sampling.params import SamplingParams
from engine.step.graphs import DecodeGraphs

SCHEMA = "conveyor-step-profile/1"
_PRODUCT = "multiply_panels"


@dataclass(frozen=True, slots=True)
class Situation:
    """What the steps that are timed have to do."""

    name: str
    num_requests: int
    prompt_len: int
    num_warm_up: int                       # steps before, prompts among them
    num_timed: int


SITUATIONS = (
    Situation("512 rows of prompts of 64", 64, 64, 1, 4),
    Situation("512 rows of prompts of 512", 8, 512, 1, 4),
    Situation("32 requests decode", 32, 64, 8, 16),
    Situation("1 request decodes", 1, 64, 4, 32),
)


@dataclass(frozen=True, slots=True)
class Profile:
    situation: str
    dtype: str
    step_ms: float                         # mean
    kernels_ms: dict[str, float]           # of a step, by kernel, the longest first

    def __str__(self) -> str:
        rest_ms = self.step_ms - sum(self.kernels_ms.values())
        parts = [*self.kernels_ms.items(), ("all else", rest_ms)]
        lines = [f"  {name:<24}{ms:>9.2f}{100 * ms / self.step_ms:>7.1f} %" for name, ms in parts]
        return "\n".join([f"{self.situation}, {self.dtype}: {self.step_ms:.1f} ms a step", *lines])


@contextlib.contextmanager
def timed_kernels(spent_s: Counter[str]) -> Iterator[None]:
    """Adds to `spent_s` what each kernel takes from now on."""
    from kernels.cpu import threads

    run: Callable[..., None] = threads.run

    def timed(launch: Any, arguments: tuple[Any, ...], num_items: int, *, min_items: int = 1) -> None:
        begun_s = time.perf_counter()
        run(launch, arguments, num_items, min_items=min_items)
        spent_s[name_of(launch.__name__, arguments)] += time.perf_counter() - begun_s

    threads.run = timed
    try:
        yield
    finally:
        threads.run = run


def name_of(launcher: str, arguments: tuple[Any, ...]) -> str:
    """A kernel by the name of its launcher; a product with its number of outputs."""
    kernel = launcher.removeprefix("_launch_")
    return f"product, {arguments[-1][0]} outputs" if kernel == _PRODUCT else kernel


def call_each_kernel(core: EngineCore) -> None:
    """Nothing is replayed from now on: the kernels of a tape cannot be told apart."""
    runner: Any = core._runner
    runner._graphs = DecodeGraphs((), runner._device)
    if runner._tapes is not None:
        runner._tapes.is_possible = False


def profile(core: EngineCore, situation: Situation, dtype: str, seed: int) -> Profile:
    runner: Any = core._runner
    vocab_size = runner._vocab_size
    random = np.random.default_rng(seed)
    sampling = SamplingParams(max_tokens=1024, temperature=0.0, ignore_eos=True)
    for index in range(situation.num_requests):
        prompt = tuple(random.integers(0, vocab_size, situation.prompt_len).tolist())
        core.add_request(GenerationRequest(str(index), prompt, sampling))
    for _ in range(situation.num_warm_up):
        core.step()
    spent_s: Counter[str] = Counter()
    with timed_kernels(spent_s):
        begun_s = time.perf_counter()
        for _ in range(situation.num_timed):
            core.step()
        step_ms = 1e3 * (time.perf_counter() - begun_s) / situation.num_timed
    core.abort_all()
    return Profile(
        situation.name, dtype, step_ms, {k: 1e3 * s / situation.num_timed for k, s in spent_s.most_common()}
    )


def run(args: argparse.Namespace) -> None:
    profiles = []
    for dtype in args.dtypes:
        config = EngineConfig.model_validate({
            "model": args.model, "dtype": dtype, "device": "cpu", "num_threads": args.threads,
            "kv_cache": {"prefix_caching": False, "capacity_tokens": 65_536},
        })  # fmt: skip
        core = build_core(config)
        call_each_kernel(core)
        for situation in SITUATIONS:
            profiles.append(profile(core, situation, dtype, args.seed))
            print(profiles[-1], end="\n\n", flush=True)
        core.close()
    document = {**stamped(SCHEMA), "model": args.model, "profiles": [asdict(profile) for profile in profiles]}
    print(f"saved {write_result(document, 'step-profile', folder=args.results)}")


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help="whatever the YAML may name")
    parser.add_argument("--dtypes", nargs="+", default=["float16", "bfloat16", "int8"])
    parser.add_argument("--threads", type=int, help="CPU threads (default: all cores)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON file")
    return parser


if __name__ == "__main__":
    prepare_process()
    try:
        run(parser().parse_args())
    except ConfigError as error:
        raise SystemExit(str(error)) from None

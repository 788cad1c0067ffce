"""What each weight format costs in quality: perplexity and the most likely token, against float32, over a fixed text.

python -m bench.quality --model demo --dtypes float16 bfloat16 int8

The text is the docstrings of the standard library, cut into windows that are each a prompt of their own. The engine is
asked for the log probabilities of the prompts: what is measured is what clients are served.
"""

import argparse
import ast
import hashlib
import json
import math
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from bench.result_file import RESULTS, stamped, write_result
from engine.build import build_core
from engine.config import EngineConfig, prepare_process
from engine.core import EngineCore
from engine.errors import ConfigError
from engine.model.hub import resolve
from engine.request import GenerationRequest
from engine.sampling.params import SamplingParams
from engine.text.tokenizer import load_tokenizer

SCHEMA = "conveyor-quality/1"
REFERENCE = "float32"


@dataclass(frozen=True, slots=True)
class Predictions:
    """What a model said at each position of each window but the first."""

    logprobs: tuple[float, ...]        # of the token that is there, natural
    most_likely: tuple[int, ...]       # token ids

    @property
    def perplexity(self) -> float:
        return math.exp(-math.fsum(self.logprobs) / len(self.logprobs))


@dataclass(frozen=True, slots=True)
class Quality:
    dtype: str
    num_tokens: int
    perplexity: float
    perplexity_ratio: float            # over the reference's
    agreement: float                   # share of positions whose most likely token is the reference's

    def __str__(self) -> str:
        return (
            f"{self.dtype:<10} perplexity {self.perplexity:8.4f} ({100 * (self.perplexity_ratio - 1):+.2f} %)   "
            f"most likely token agrees at {100 * self.agreement:.2f} % of {self.num_tokens} positions"
        )


def compared(dtype: str, predictions: Predictions, reference: Predictions) -> Quality:
    agreeing = np.equal(predictions.most_likely, reference.most_likely)
    perplexity = predictions.perplexity
    return Quality(dtype, len(agreeing), perplexity, perplexity / reference.perplexity, float(agreeing.mean()))


def docstrings(folder: Path) -> Iterator[str]:
    """The docstrings of the modules in a folder, module by module, from top to bottom."""
    for path in sorted(folder.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            is_documented = isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            if is_documented and (text := ast.get_docstring(node)):
                yield text


def windows_of(token_ids: Sequence[int], length: int, num_tokens: int) -> list[tuple[int, ...]]:
    """The first `num_tokens` in windows of `length`. Raises ValueError where there are fewer."""
    if len(token_ids) < num_tokens:
        raise ValueError(f"{num_tokens} tokens asked for, the text has {len(token_ids)}")
    return [tuple(token_ids[first : first + length]) for first in range(0, num_tokens - length + 1, length)]


def predictions_of(core: EngineCore, windows: Sequence[Sequence[int]], name: str) -> Predictions:
    sampling = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1)
    found: dict[str, tuple[list[float], list[int]]] = {}
    for index, window in enumerate(windows):
        core.add_request(GenerationRequest(str(index), tuple(window), sampling))
    with tqdm(total=len(windows), desc=name, unit="window", leave=False) as bar:
        while core.has_work:
            for output in core.step():
                if output.error is not None:
                    raise RuntimeError(f"window {output.request_id}: {output.error}")
                if output.prompt_logprobs is not None:
                    entries = output.prompt_logprobs[1:]           # nothing precedes the first token
                    logprobs = [entry.logprob for entry in entries if entry.logprob is not None]
                    found[output.request_id] = (logprobs, [entry.top[0][0] for entry in entries])
                    bar.update()
    ordered = [found[str(index)] for index in range(len(windows))]
    return Predictions(
        tuple(value for logprobs, _ in ordered for value in logprobs),
        tuple(token for _, tokens in ordered for token in tokens),
    )


def measure(args: argparse.Namespace) -> dict[str, Any]:
    tokenizer = load_tokenizer(resolve(args.model).path)
    text = "\n\n".join(docstrings(Path(sysconfig.get_path("stdlib"))))
    windows = windows_of(tokenizer.encode(text[: 12 * args.tokens]), args.window, args.tokens)
    reference, found = None, []
    for dtype in (REFERENCE, *(dtype for dtype in args.dtypes if dtype != REFERENCE)):
        core = build_core(engine_config(args, dtype))
        predictions = predictions_of(core, windows, dtype)
        core.close()
        reference = reference or predictions
        found.append(compared(dtype, predictions, reference))
        print(found[-1], flush=True)
    return {
        **stamped(SCHEMA),
        "model": args.model,
        "window": args.window,
        "text_sha256": hashlib.sha256(json.dumps(windows).encode()).hexdigest(),
        "qualities": [asdict(quality) for quality in found],
    }


def engine_config(args: argparse.Namespace, dtype: str) -> EngineConfig:
    return EngineConfig.model_validate({
        "model": args.model, "device": "cpu", "dtype": dtype, "max_model_len": args.window + 1,
        "num_threads": args.threads, "max_num_waiting": args.tokens,
        "kv_cache": {"capacity_tokens": 8 * (args.window + 64), "prefix_caching": False},
    })  # fmt: skip


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help="whatever the YAML may name")
    parser.add_argument("--dtypes", nargs="+", default=["float16", "bfloat16", "int8"])
    parser.add_argument("--tokens", type=int, default=20_480)
    parser.add_argument("--window", type=int, default=512, help="tokens of a prompt")
    parser.add_argument("--threads", type=int, help="CPU threads (default: all cores)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON file")
    return parser


if __name__ == "__main__":
    prepare_process()
    arguments = parser().parse_args()
    try:
        print(f"saved {write_result(measure(arguments), 'quality', folder=arguments.results)}")
    except ConfigError as error:
        raise SystemExit(str(error)) from None

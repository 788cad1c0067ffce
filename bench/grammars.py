"""Libraries that constrain output to a grammar, on one real vocabulary: what they cover and what they cost.

python -m bench.grammars --model demo

For every feature of bench.grammar_cases: whether texts that fit pass token by token and texts that do not are stopped,
the time to compile, and the time that a mask takes, at the first pass over the valid texts and at a second one.
Libraries that are not installed are left out; the server needs the chosen one only.
"""

import argparse
import importlib.metadata
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from bench.grammar_cases import CASES, Case
from bench.result_file import RESULTS, stamped, write_result
from engine.api import Tokenizer, load_tokenizer, resolve_model

SCHEMA = "conveyor-grammars/1"
Words = npt.NDArray[np.int32]
Encode = Callable[[str], list[int]]


class Matcher(Protocol):
    def fill(self, words: Words) -> None:
        """Set the bit of every token that may come next; bit `end_id` if the text may end."""

    def accept(self, token_id: int) -> bool: ...


class Library(Protocol):
    name: str
    distributions: tuple[str, ...]  # what it installs that a server without grammars does not have

    def prepare(
        self, token_bytes: Sequence[bytes], special_ids: Sequence[int], end_id: int, encode: Encode
    ) -> None: ...

    def compile(self, kind: str, text: str) -> Callable[[], Matcher]:
        """Raises ValueError where the library refuses."""


class LLGuidance:
    name = "llguidance"
    distributions = ("llguidance",)

    def prepare(self, token_bytes: Sequence[bytes], special_ids: Sequence[int], end_id: int, encode: Encode) -> None:
        import llguidance

        class Vocabulary:
            eos_token_id, bos_token_id = end_id, None
            tokens, special_token_ids = token_bytes, [*special_ids]

            def __call__(self, text: str) -> list[int]:
                return encode(text)

        self._lib = llguidance
        self._tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Vocabulary()), n_vocab=len(token_bytes))

    def compile(self, kind: str, text: str) -> Callable[[], Matcher]:
        matcher = self._lib.LLMatcher
        grammar = matcher.grammar_from_json_schema(text) if kind == "json_schema" else matcher.grammar_from_regex(text)
        prototype = matcher(self._tokenizer, grammar, log_level=0)
        if prototype.is_error():
            raise ValueError(prototype.get_error())
        return lambda: _LLGuidanceMatcher(prototype.deep_copy())


class _LLGuidanceMatcher:
    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def fill(self, words: Words) -> None:
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)

    def accept(self, token_id: int) -> bool:
        return bool(self._matcher.consume_token(token_id))


class XGrammar:
    name = "xgrammar"
    distributions = ("xgrammar", "apache-tvm-ffi")

    def prepare(self, token_bytes: Sequence[bytes], special_ids: Sequence[int], end_id: int, encode: Encode) -> None:
        import xgrammar

        vocabulary = [b"" if i in {*special_ids} else token for i, token in enumerate(token_bytes)]
        info = xgrammar.TokenizerInfo(vocabulary, stop_token_ids=[end_id])
        self._lib = xgrammar
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, kind: str, text: str) -> Callable[[], Matcher]:
        try:
            if kind == "json_schema":
                compiled = self._compiler.compile_json_schema(text, strict_mode=False)
            else:
                compiled = self._compiler.compile_regex(text)
        except Exception as error:  # of several kinds, all for what it refuses
            raise ValueError(str(error)) from error
        return lambda: _XGrammarMatcher(self._lib.GrammarMatcher(compiled))


class _XGrammarMatcher:
    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def fill(self, words: Words) -> None:
        import torch

        words.fill(-1)  # it writes nothing where everything is allowed
        self._matcher.fill_next_token_bitmask(torch.from_numpy(words[None]))

    def accept(self, token_id: int) -> bool:
        return bool(self._matcher.accept_token(token_id))


@dataclass(frozen=True, slots=True)
class Finding:
    """What one library made of one case. Times of masks in µs, each the best of all rounds: others share the cores."""

    feature: str
    verdict: str  # enforced | refused | too loose | too tight
    compile_ms: float = 0.0
    first_us: float = 0.0  # mean over the tokens of the valid texts, at the first pass
    second_us: float = 0.0  # the same at a second one
    worst_us: float = 0.0  # of either pass
    detail: str = ""  # why it was refused, or which texts it judged wrongly


def judge(library: Library, case: Case, encode: Encode, end_id: int, rounds: int) -> Finding:
    compile_ms: list[float] = []
    passes: list[tuple[list[float], list[float]]] = []
    for _ in range(rounds):
        begun_s = time.perf_counter()
        try:
            start = library.compile(case.kind, case.text)
        except ValueError as error:
            return Finding(case.feature, "refused", detail=str(error)[:200])
        compile_ms.append(1e3 * (time.perf_counter() - begun_s))
        times_us: tuple[list[float], list[float]] = ([], [])
        missed = [text for text in case.valid if not _passes(start(), encode(text), end_id, times_us[0])]
        for text in case.valid:
            _passes(start(), encode(text), end_id, times_us[1])
        passes.append(times_us)
    wrong = missed or [text for text in case.invalid if _passes(start(), encode(text), end_id, [])]
    first, second = (np.min([times[i] for times in passes], axis=0) for i in (0, 1))
    return Finding(
        case.feature, "too tight" if missed else "too loose" if wrong else "enforced", min(compile_ms),
        float(first.mean()), float(second.mean()), float(max(first.max(), second.max())), "; ".join(wrong)[:200],
    )  # fmt: skip


def _passes(matcher: Matcher, token_ids: Sequence[int], end_id: int, times_us: list[float]) -> bool:
    words = np.zeros(end_id // 32 + 1, np.int32)
    for token_id in (*token_ids, end_id):
        begun_s = time.perf_counter()
        matcher.fill(words)
        times_us.append(1e6 * (time.perf_counter() - begun_s))
        if not words[token_id // 32] >> (token_id % 32) & 1:
            return False
        if token_id != end_id and not matcher.accept(token_id):
            return False
    return True


def installed_bytes(distributions: Sequence[str]) -> int:
    files = [file for name in distributions for file in importlib.metadata.files(name) or ()]
    return sum(path.stat().st_size for file in files if (path := Path(str(file.locate()))).is_file())


def measure(library: Library, tokenizer: Tokenizer, rounds: int) -> tuple[dict[str, Any], list[Finding]]:
    end_id = tokenizer.vocab_size  # an end of its own, beyond the vocabulary
    token_bytes = [tokenizer.token_bytes(i) for i in range(end_id)] + [b"<end>"]

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    begun_s = time.perf_counter()
    library.prepare(token_bytes, [*sorted(tokenizer.special_token_ids), end_id], end_id, encode)
    about = {
        "library": library.name,
        "version": importlib.metadata.version(library.name),
        "installed_bytes": installed_bytes(library.distributions),
        "prepare_s": time.perf_counter() - begun_s,
    }
    return about, [judge(library, case, encode, end_id, rounds) for case in CASES]


def table(about: dict[str, Any], found: Sequence[Finding]) -> str:
    lines = [
        f"{about['library']} {about['version']}: {about['installed_bytes'] / 1e6:.1f} MB installed, "
        f"{about['prepare_s']:.2f} s for the vocabulary",
        f"{'feature':<30}{'verdict':<12}{'compile ms':>11}{'first µs':>10}{'second µs':>11}{'worst µs':>10}",
    ]
    lines += [
        f"{f.feature:<30}{f.verdict:<12}{f.compile_ms:>11.2f}{f.first_us:>10.1f}{f.second_us:>11.1f}{f.worst_us:>10.0f}"
        f"  {f.detail}"
        for f in found
    ]
    verdicts = [f.verdict for f in found]
    lines.append(", ".join(f"{verdicts.count(v)} {v}" for v in ("enforced", "refused", "too loose", "too tight")))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help="whose vocabulary")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON file")
    options = parser.parse_args()
    tokenizer = load_tokenizer(resolve_model(options.model).path)
    document = stamped(SCHEMA) | {"model": options.model, "vocab_size": tokenizer.vocab_size, "libraries": []}
    for library in (LLGuidance(), XGrammar()):
        try:
            importlib.metadata.version(library.name)
        except importlib.metadata.PackageNotFoundError:
            continue
        about, found = measure(library, tokenizer, options.rounds)
        print(table(about, found), end="\n\n", flush=True)
        document["libraries"].append(about | {"findings": [asdict(finding) for finding in found]})
    print(write_result(document, "grammars", folder=options.results))


if __name__ == "__main__":
    main()

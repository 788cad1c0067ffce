"""What the guard measures, round after round: each ratio's two times are taken one right after the other."""

import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from bench import kernel_inputs
from bench.engine import step_bytes
from bench.guard.yardsticks import Products, least_s, python_work
from bench.null_engine import build_null_core
from bench.prepared import build_prepared_core
from bench.step_loop import timed_steps
from bench.timing import read_bytes_per_s
from engine.build import describe_configured
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.request import GenerationRequest
from engine.sampling.params import SamplingParams
from engine.simulation.build import plan_simulation
from engine.simulation.records import Arrival
from engine.simulation.replay import replay

DTYPES = ("bfloat16", "int8")
_CPU = torch.device("cpu")
_SHAPE = {"page": 32, "num_query_heads": 14, "num_kv_heads": 2, "head_dim": 64}
_SIMULATED = {"model": "llama-8b", "device": "h100"}


@dataclass(frozen=True, slots=True)
class Size:
    """How much of everything a round does."""

    model: str = "random:qwen2.5-0.5b"             # the demo model's shape: nothing need be fetched
    batch: int = 16
    prompt_len: int = 8
    decode_steps: int = 5
    single_steps: int = 8
    prefix_len: int = 160                          # five blocks
    context: int = 512
    vocab_size: int = 151_936
    null_steps: int = 50
    arrivals: int = 300
    read_bytes: int = 2**30


TINY = Size("random:tiny", 4, 4, 2, 2, 64, 64, 2000, 5, 20, 2**22)


class Trials:
    """Everything that is measured, loaded once; `round` measures it."""

    def __init__(self, size: Size, seed: int) -> None:
        self._size = size
        configs = {dtype: _config(size, dtype) for dtype in DTYPES}
        self._descriptions = {dtype: describe_configured(config) for dtype, config in configs.items()}
        self._cores = {dtype: build_prepared_core(config) for dtype, config in configs.items()}
        self._spec = self._descriptions[DTYPES[0]].spec
        self._products = Products(self._spec)
        self._null = build_null_core(32)
        self._rng = np.random.default_rng(seed)
        self._num_requests = 0
        torch.manual_seed(seed)

    def rounds(self, count: int) -> dict[str, list[float]]:
        """ratio -> what each round found"""
        found: defaultdict[str, list[float]] = defaultdict(list)
        for _ in range(count):
            for name, ratio in self.round():
                found[name].append(ratio)
        return dict(found)

    def round(self) -> Iterator[tuple[str, float]]:
        yield from self._engines()
        yield from self._attention()
        yield from self._sampling()
        yield from self._python()
        yield "TTFT: cached prefix / not cached", self._prefix(self._cores["bfloat16"])

    def close(self) -> None:
        for core in (*self._cores.values(), self._null):
            core.close()

    def _engines(self) -> Iterator[tuple[str, float]]:
        size = self._size
        decode_s: dict[str, float] = {}
        for dtype, core in self._cores.items():
            prompt_s = self._products.seconds(size.batch * size.prompt_len, size.batch)
            products_s = self._products.seconds(size.batch, size.batch)
            for request in self._requests(size.batch, size.prompt_len, 1000):
                core.add_request(request)
            [prefill] = timed_steps(core, 1)
            _, *decodes = timed_steps(core, size.decode_steps + 1)
            decode_s[dtype] = statistics.median(step.total_s for step in decodes)
            yield f"prompts {dtype} / torch.mm float32", prefill.total_s / prompt_s
            yield f"decode {dtype} / torch.mm float32", decode_s[dtype] / products_s
            yield f"decode {dtype}: own Python / step", statistics.median(s.own_s / s.total_s for s in decodes)
            yield f"single stream {dtype} / reading the weights", self._single_s(core) / self._reading_s(dtype)
            core.abort_all()
        yield "decode int8 / bfloat16", decode_s["int8"] / decode_s["bfloat16"]

    def _single_s(self, core: EngineCore) -> float:
        """A step of the first request that runs, once the others have gone."""
        for index in range(1, self._size.batch):
            core.abort(f"request-{self._num_requests - index}")
        _, *steps = timed_steps(core, self._size.single_steps + 1)
        return statistics.median(step.total_s for step in steps)

    def _reading_s(self, dtype: str) -> float:
        return step_bytes(self._descriptions[dtype], 0) / read_bytes_per_s(self._size.read_bytes)

    def _prefix(self, core: EngineCore) -> float:
        rest_len = 16
        missed, found = self._requests(2, self._size.prefix_len + rest_len, 1)
        prompt = missed.prompt_token_ids[: self._size.prefix_len] + found.prompt_token_ids[-rest_len:]
        found = GenerationRequest(found.request_id, prompt, found.sampling)
        missed_s, found_s = (_seconds_to_end(core, request) for request in (missed, found))
        return found_s / missed_s

    def _attention(self) -> Iterator[tuple[str, float]]:
        batch, context = self._size.batch, self._size.context
        heads, kv_heads, head_dim = (_SHAPE[name] for name in ("num_query_heads", "num_kv_heads", "head_dim"))
        for name, num_requests, query_len in (("decode", batch, 1), ("a prompt", 1, context)):
            on = {"device": _CPU, "dtype": torch.float32, **_SHAPE}
            ours = kernel_inputs.attention([query_len] * num_requests, [context] * num_requests, **on)
            query = torch.randn(num_requests, heads, query_len, head_dim)
            key, value = (torch.randn(num_requests, kv_heads, context, head_dim) for _ in range(2))
            sdpa = partial(F.scaled_dot_product_attention, query, key, value, is_causal=query_len > 1, enable_gqa=True)
            ours_s, sdpa_s = least_s(ours, sdpa)
            yield f"attention of {name} / torch SDPA", ours_s / sdpa_s

    def _sampling(self) -> Iterator[tuple[str, float]]:
        shape = (self._size.batch, self._size.vocab_size)
        for name, options in (("greedy", {"temperature": 0.0}), ("top-k, top-p", {"top_k": 50, "top_p": 0.9})):
            ours = kernel_inputs.sampling(*shape, device=_CPU, **options)
            argmax = partial(torch.argmax, ours.arguments["logits"], dim=1)
            ours_s, argmax_s = least_s(ours, argmax)
            yield f"sampling {name} / torch.argmax", ours_s / argmax_s

    def _python(self) -> Iterator[tuple[str, float]]:
        for request in self._requests(32, 32, 900, vocab_size=512):
            self._null.add_request(request)
        timed_steps(self._null, 3)
        step_s, work_s = least_s(self._null.step, python_work, rounds=self._size.null_steps)
        self._null.abort_all()
        yield "step loop, 32 sequences / Python", step_s / work_s
        plan = plan_simulation({"policy": "chunked"}, **_SIMULATED)
        arrivals = [Arrival(200, 50)] * self._size.arrivals
        replay_s, work_s = least_s(lambda: replay(plan.build(), arrivals), python_work, rounds=3)
        yield "simulator / Python", replay_s / work_s

    def _requests(
        self, count: int, prompt_len: int, output_len: int, *, vocab_size: int | None = None
    ) -> list[GenerationRequest]:
        """Prompts that no round had before."""
        prompts = self._rng.integers(0, vocab_size or self._spec.vocab_size, (count, prompt_len)).tolist()
        first, self._num_requests = self._num_requests, self._num_requests + count
        sampling = SamplingParams(output_len, temperature=0.0, ignore_eos=True)
        return [GenerationRequest(f"request-{first + i}", tuple(prompt), sampling) for i, prompt in enumerate(prompts)]


def _config(size: Size, dtype: str) -> EngineConfig:
    return EngineConfig.model_validate({
        "model": size.model,
        "device": "cpu",
        "dtype": dtype,
        "max_model_len": 1024,
        "scheduler": {"max_num_seqs": size.batch, "max_num_batched_tokens": 512},
        "kv_cache": {"capacity_tokens": 1024 * max(size.batch, 8), "block_size": 32},
    })


def _seconds_to_end(core: EngineCore, request: GenerationRequest) -> float:
    begun_s = time.perf_counter()
    core.add_request(request)
    while core.has_work:
        core.step()
    return time.perf_counter() - begun_s

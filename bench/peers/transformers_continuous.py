"""The peer that comes with transformers: its own continuous batching (`generate_batch`), float32 by default.

Run by `python -m bench.peers`, in a process of its own. `generate_batch` takes no arrivals, so its manager is used as
`generate_batch` itself uses it. On a processor the manager computes attention by `sdpa`, the model's default, with a
mask over all cached tokens.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import ContinuousBatchingConfig, GenerationConfig

from bench.peers.protocol import serve_workloads, take_stdout
from bench.peers.stepping import run_stepped
from bench.peers.transformers_static import load_model
from bench.workloads import WorkloadRequest

_PAGE_TOKENS = 256                        # transformers' own choice
_ATTENTION = "sdpa"


class Engine:
    """A SteppedEngine. Requests that are done bring the times of their tokens along."""

    def __init__(self, model: Any, *, kv_tokens: int, batch_tokens: int) -> None:
        generation: Any = GenerationConfig                # it has no types
        batching: Any = ContinuousBatchingConfig
        self._manager = model.init_continuous_batching(
            generation_config=generation(do_sample=False, eos_token_id=-1, pad_token_id=0),
            continuous_batching_config=batching(
                page_size=_PAGE_TOKENS, num_blocks=-(-kv_tokens // _PAGE_TOKENS), max_batch_tokens=batch_tokens,
                allow_block_sharing=False, auto_switch_to_flash=False,
            ),
        )  # fmt: skip
        with torch.inference_mode():                      # the manager's thread takes this over
            self._manager.start()
        self._num_added = 0
        self._index_of: dict[str, int] = {}

    def add(self, request: WorkloadRequest) -> None:
        self._num_added += 1
        self._index_of[str(self._num_added)] = request.index
        self._manager.add_request(
            list(request.prompt_token_ids), request_id=str(self._num_added), max_new_tokens=request.output_len,
            record_timestamps=True, eos_token_id=-1,
        )  # fmt: skip

    def step(self) -> list[tuple[int, Sequence[float]]]:
        """Raises RuntimeError if the manager's thread died or a request failed."""
        output = self._manager.get_result(timeout=0.05)
        if output is None:
            if not self._manager.is_running():
                raise RuntimeError("the thread of transformers' continuous batching ended")
            return []
        if output.error is not None:
            raise RuntimeError(output.error)
        return [(self._index_of.pop(output.request_id), output.timestamps)] if output.is_finished() else []

    def close(self) -> None:
        self._manager.stop(block=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a folder or a .gguf file")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--kv-tokens", type=int, default=32768)
    parser.add_argument("--batch-tokens", type=int, default=512, help="most tokens of one step")
    parser.add_argument("--num-threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    out = take_stdout()
    torch.set_num_threads(args.num_threads)
    model = load_model(args.model, getattr(torch, args.dtype), attention=_ATTENTION)
    engine = Engine(model, kv_tokens=args.kv_tokens, batch_tokens=args.batch_tokens)
    description = {
        "dtype": args.dtype,
        "attention": _ATTENTION,
        "kv_tokens": args.kv_tokens,
        "batch_tokens": args.batch_tokens,
        "num_threads": args.num_threads,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    try:
        serve_workloads(out, description, lambda workload, on_record: run_stepped(workload, engine, on_record))
    finally:
        engine.close()


if __name__ == "__main__":
    main()

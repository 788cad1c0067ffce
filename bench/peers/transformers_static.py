"""The peer everybody has: transformers `generate` in padded static batches, float32 by default.

Run by `python -m bench.peers`, in a process of its own.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig, StoppingCriteria, StoppingCriteriaList

from bench.peers.protocol import serve_workloads, take_stdout
from bench.peers.static_batches import run_static_batches
from bench.workloads import WorkloadRequest


class _AfterEachToken(StoppingCriteria):
    """Never stops; tells when a step of the whole batch is done."""

    def __init__(self, on_step: Callable[[], None]) -> None:
        self._on_step = on_step

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        self._on_step()
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


class StaticGenerator:
    """A transformers model that generates a padded batch, greedily, EOS ignored."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._model.generation_config = _greedy_without_eos()

    def __call__(self, requests: Sequence[WorkloadRequest], num_tokens: int, on_step: Callable[[], None]) -> None:
        input_ids, attention_mask = left_padded([request.prompt_token_ids for request in requests])
        device = self._model.device
        with torch.inference_mode():
            output = self._model.generate(
                input_ids=input_ids.to(device),
                attention_mask=attention_mask.to(device),
                max_new_tokens=num_tokens,
                stopping_criteria=StoppingCriteriaList([_AfterEachToken(on_step)]),
            )
        if output.shape[1] != input_ids.shape[1] + num_tokens:
            raise RuntimeError(f"generate made {output.shape[1] - input_ids.shape[1]} tokens, not {num_tokens}")


def _greedy_without_eos() -> Any:
    config: Any = GenerationConfig  # it has no types
    return config(pad_token_id=0, do_sample=False)


def left_padded(prompts: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask of a batch, both [num_requests, longest prompt], padded at the left."""
    longest = max(map(len, prompts))
    input_ids = torch.zeros(len(prompts), longest, dtype=torch.int64)
    attention_mask = torch.zeros_like(input_ids)
    for row, prompt in enumerate(prompts):
        input_ids[row, longest - len(prompt) :] = torch.tensor(prompt)
        attention_mask[row, longest - len(prompt) :] = 1
    return input_ids, attention_mask


def load_model(path: Path, dtype: torch.dtype, *, attention: str = "sdpa") -> Any:
    """The model in a folder or a .gguf file, on the GPU if there is one."""
    source = {"gguf_file": path.name} if path.suffix == ".gguf" else {}
    folder = path.parent if source else path
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=attention, **source)
    return model.eval().to("cuda" if torch.cuda.is_available() else "cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a folder or a .gguf file")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--num-threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()

    out = take_stdout()
    torch.set_num_threads(args.num_threads)
    generate = StaticGenerator(load_model(args.model, getattr(torch, args.dtype)))
    description = {
        "batch_size": args.batch_size,
        "dtype": args.dtype,
        "num_threads": args.num_threads,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    serve_workloads(
        out,
        description,
        lambda workload, on_record: run_static_batches(workload, generate, on_record, batch_size=args.batch_size),
    )


if __name__ == "__main__":
    main()

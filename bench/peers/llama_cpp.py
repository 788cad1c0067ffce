"""The peer llama.cpp, through the batch interface of the Python package `llama-cpp-python`.

Run by `python -m bench.peers`, in a process of its own. The package's own server runs one sequence at a time;
`bench.peers.slots` does what llama.cpp's own server does instead. Parameters of the context are that server's defaults:
flash attention where it can, batches of 2048 in pieces of 512, a KV cache in float16 for each slot.
"""

import argparse
import ctypes
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from bench.peers.protocol import serve_workloads, take_stdout
from bench.peers.slots import Row, SlotBatcher
from bench.peers.stepping import run_stepped
from bench.workloads import WorkloadRequest

_BATCH_TOKENS = 2048
_PIECE_TOKENS = 512
_FILE_TYPES = {"q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, "q4_k_m": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M}


class Context:
    """A model with a context for `num_slots` sequences."""

    def __init__(self, path: Path, *, num_slots: int, slot_tokens: int, num_threads: int) -> None:
        """Raises RuntimeError if llama.cpp cannot load the file or make the context."""
        llama_cpp.llama_backend_init()
        model_parameters = llama_cpp.llama_model_default_params()
        # Mapped pages would be counted by halves where two processes hold the same file.
        model_parameters.use_mmap = False
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), model_parameters)
        if not self._model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx = num_slots * slot_tokens
        parameters.n_batch, parameters.n_ubatch = _BATCH_TOKENS, _PIECE_TOKENS
        parameters.n_seq_max = num_slots
        parameters.n_threads = parameters.n_threads_batch = num_threads
        self._context = llama_cpp.llama_init_from_model(self._model, parameters)
        if not self._context:
            raise RuntimeError(f"llama.cpp cannot make a context of {parameters.n_ctx} tokens")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(_BATCH_TOKENS, 0, 1)
        self._num_vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))

    @property
    def description(self) -> str:
        """The model's architecture and weight format in llama.cpp's words."""
        text = ctypes.create_string_buffer(256)
        llama_cpp.llama_model_desc(self._model, text, len(text))
        return text.value.decode()

    def decode(self, rows: Sequence[Row]) -> list[int]:
        """Greedy next tokens of the rows that want logits. Raises RuntimeError if llama.cpp refuses the batch."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, row in enumerate(rows):
            batch.token[i] = row.token
            batch.pos[i] = row.position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = row.slot
            batch.logits[i] = row.wants_logits
        status = llama_cpp.llama_decode(self._context, batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status} for a batch of {len(rows)} tokens")
        num_sampled = sum(row.wants_logits for row in rows)
        if not num_sampled:
            return []
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(self._context), (num_sampled, self._num_vocabulary))
        return logits.argmax(axis=1).tolist()

    def forget(self, slot: int) -> None:
        llama_cpp.llama_memory_seq_rm(self._memory, slot, -1, -1)


class _Engine:
    """A SteppedEngine."""

    def __init__(self, batcher: SlotBatcher) -> None:
        self._batcher = batcher

    def add(self, request: WorkloadRequest) -> None:
        self._batcher.add(request)

    def step(self) -> list[tuple[int, Sequence[float]]]:
        indices = self._batcher.step()
        now_s = time.perf_counter()
        return [(index, (now_s,)) for index in indices]


def quantize(source: Path, target: Path, file_type: str) -> None:
    """Write `source` to `target` in another format; from a quantised file that is for speed, not for quality.

    Raises RuntimeError if llama.cpp refuses.
    """
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = _FILE_TYPES[file_type]
    parameters.allow_requantize = True
    unfinished = target.with_name(target.name + ".part")
    status = llama_cpp.llama_model_quantize(str(source).encode(), str(unfinished).encode(), ctypes.byref(parameters))
    if status:
        raise RuntimeError(f"llama_model_quantize returned {status} for {source}")
    unfinished.rename(target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a .gguf file")
    parser.add_argument("--num-slots", type=int, default=16, help="sequences at once")
    parser.add_argument("--max-len", type=int, default=512, help="tokens of the longest request")
    parser.add_argument("--num-threads", type=int, default=1)
    parser.add_argument("--quantize-to", type=Path, help="write the model in another format and end")
    parser.add_argument("--file-type", choices=_FILE_TYPES, help="the format")
    args = parser.parse_args()
    out = take_stdout()
    if args.quantize_to is not None:
        quantize(args.model, args.quantize_to, args.file_type)
        return
    context = Context(
        args.model, num_slots=args.num_slots, slot_tokens=_padded(args.max_len), num_threads=args.num_threads
    )
    batcher = SlotBatcher(context.decode, context.forget, num_slots=args.num_slots, batch_tokens=_BATCH_TOKENS)
    description: dict[str, Any] = {
        "dtype": context.description,
        "num_slots": args.num_slots,
        "kv_tokens": args.num_slots * _padded(args.max_len),
        "num_threads": args.num_threads,
        "features": llama_cpp.llama_print_system_info().decode().strip(),
        "versions": {"llama-cpp-python": llama_cpp.__version__},
    }
    engine = _Engine(batcher)
    serve_workloads(out, description, lambda workload, on_record: run_stepped(workload, engine, on_record))


def _padded(num_tokens: int) -> int:
    """llama.cpp gives slots multiples of 256 tokens."""
    return -(-num_tokens // 256) * 256


if __name__ == "__main__":
    main()

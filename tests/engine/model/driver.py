"""A decoder driven by hand: sequences with block tables of their own, computed in the chunks a test asks for."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from engine.config import EngineConfig
from engine.kv_cache.tensors import KVCacheTensors
from engine.model.decoder import Decoder
from engine.model.hub import ResolvedModel
from engine.model.inputs import BatchInputs
from engine.model.loader import LoadedModel, load_model


def load(path: Path, dtype: str = "float32", num_valid_tokens: int | None = None, **options: Any) -> LoadedModel:
    kind = "gguf" if path.suffix == ".gguf" else "folder"
    config = EngineConfig(model=str(path), dtype=dtype, **options)
    return load_model(ResolvedModel(kind, path, path.stem), config, "cpu", num_valid_tokens=num_valid_tokens)


class Driver:
    def __init__(self, decoder: Decoder, max_len: int, num_sequences: int = 1, block_size: int = 16) -> None:
        self._decoder, self._block_size = decoder, block_size
        blocks_each = -(-max_len // block_size)
        num_blocks = blocks_each * num_sequences
        self._kv = KVCacheTensors.allocate(decoder.spec, num_blocks, block_size, torch.float32, "cpu")
        order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(0))  # scattered, as in service
        self._tables = order.view(num_sequences, blocks_each).int()

    @torch.inference_mode()
    def step(self, chunks: Sequence[tuple[int, list[int], int, int]]) -> list[torch.Tensor]:
        """One forward pass. A chunk is (sequence, token ids, start, num_prompt_tokens); returns the logits of each."""
        lengths = [len(tokens) for _, tokens, _, _ in chunks]
        positions = torch.cat([torch.arange(start, start + len(tokens)) for _, tokens, start, _ in chunks])
        prompts = torch.cat([torch.full((len(tokens),), prompt) for _, tokens, _, prompt in chunks])
        tables = self._tables[[sequence for sequence, *_ in chunks]]
        rows = torch.repeat_interleave(torch.arange(len(chunks)), torch.tensor(lengths))
        blocks = tables[rows, positions // self._block_size].long()
        batch = BatchInputs(
            input_ids=torch.tensor([token for _, tokens, _, _ in chunks for token in tokens]),
            positions=positions,
            rope_lengths=torch.maximum(prompts, positions + 1),
            query_start_loc=torch.tensor([0, *lengths]).cumsum(0).int(),
            seq_lens=torch.tensor([start + len(tokens) for _, tokens, start, _ in chunks]).int(),
            block_table=tables,
            slot_mapping=blocks * self._block_size + positions % self._block_size,
            max_query_len=max(lengths),
        )
        return list(self._decoder.logits(self._decoder.forward(batch, self._kv)).split(lengths))

    def prefill(self, token_ids: list[int], budget: int, sequence: int = 0) -> torch.Tensor:
        """Logits of a prompt computed `budget` tokens at a time: [num_tokens, vocab_size]"""
        return torch.cat([
            self.step([(sequence, token_ids[start:start + budget], start, len(token_ids))])[0]
            for start in range(0, len(token_ids), budget)
        ])

    def generate(self, prompts: Sequence[list[int]], num_tokens: int, budget: int = 64) -> list[list[int]]:
        """Greedy continuations: prompts in chunks one by one, then all decoded together."""
        sequences = [[*prompt, int(self.prefill(prompt, budget, i)[-1].argmax())] for i, prompt in enumerate(prompts)]
        for _ in range(num_tokens - 1):
            logits = self.step([
                (i, ids[-1:], len(ids) - 1, len(prompt))
                for i, (ids, prompt) in enumerate(zip(sequences, prompts, strict=True))
            ])
            for ids, rows in zip(sequences, logits, strict=True):
                ids.append(int(rows[-1].argmax()))
        return [ids[len(prompt):] for ids, prompt in zip(sequences, prompts, strict=True)]

"""TokenTable: the runner's own copy of every live request's tokens and blocks, as rows of two arrays."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.request import GenerationRequest

NOT_PENDING = -1


@dataclass(slots=True)
class Row:
    """One request's place in the table."""

    index: int
    request_id: str
    generation: GenerationRequest
    block_table: tuple[int, ...] = ()


class TokenTable:
    """Rows of token ids and block ids, gathered for a whole batch by one indexing operation.

    token_ids     int32 [num_rows, max_model_len]
    num_tokens    int64 [num_rows]
    num_prompt    int64 [num_rows]
    block_ids     int32 [num_rows, max_blocks]
    num_slots     int64 [num_rows]       tokens that the blocks, and the context, have room for

    A token that is still on the device is counted, and its place there is known:

    pending_position  int64 [num_rows]   its index in token_ids, or -1
    pending_place     int64 [num_rows]   where it is among the samples of its step
    """

    def __init__(self, num_rows: int, max_model_len: int, block_size: int) -> None:
        self.block_size = block_size
        self.max_model_len = max_model_len
        max_blocks = -(-max_model_len // block_size)
        self.token_ids = np.zeros((num_rows, max_model_len), np.int32)
        self.num_tokens = np.zeros(num_rows, np.int64)
        self.num_prompt = np.zeros(num_rows, np.int64)
        self.block_ids = np.zeros((num_rows, max_blocks), np.int32)
        self.num_slots = np.zeros(num_rows, np.int64)
        self.pending_position = np.full(num_rows, NOT_PENDING, np.int64)
        self.pending_place = np.full(num_rows, NOT_PENDING, np.int64)
        self._free = list(range(num_rows - 1, -1, -1))
        self._rows: dict[str, Row] = {}                # request_id -> row

    def __getitem__(self, request_id: str) -> Row:
        return self._rows[request_id]

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._rows

    def rows(self, request_ids: Iterable[str]) -> list[Row]:
        return list(map(self._rows.__getitem__, request_ids))

    def holds(self, row: Row) -> bool:
        """Whether `row` is still its request's, which may have gone and even come again."""
        return self._rows.get(row.request_id) is row

    def add(self, generation: GenerationRequest, token_ids: tuple[int, ...]) -> Row:
        if not self._free:
            self._grow()
        row = self._rows[generation.request_id] = Row(self._free.pop(), generation.request_id, generation)
        self.token_ids[row.index, : len(token_ids)] = token_ids
        self.num_tokens[row.index] = len(token_ids)
        self.num_prompt[row.index] = len(generation.prompt_token_ids)
        self.num_slots[row.index] = 0
        self.pending_position[row.index] = NOT_PENDING
        return row

    def remove(self, request_id: str) -> None:
        row = self._rows.pop(request_id, None)
        if row is not None:
            self._free.append(row.index)

    def set_block_tables(self, block_tables: Mapping[str, tuple[int, ...]]) -> None:
        for row, block_table in zip(self.rows(block_tables), block_tables.values(), strict=True):
            if row.block_table is not block_table:     # the scheduler makes a new tuple only when a table changes
                self.block_ids[row.index, : len(block_table)] = block_table
                self.num_slots[row.index] = min(len(block_table) * self.block_size, self.max_model_len)
                row.block_table = block_table

    def expect(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Count one more token for each of `rows`, being sampled in this order; returns their positions [len(rows)]."""
        positions = self.num_tokens[rows]
        self.num_tokens[rows] += 1
        self.pending_position[rows] = positions
        self.pending_place[rows] = np.arange(len(rows))
        return positions

    def fill(
        self, rows: npt.NDArray[np.int64], positions: npt.NDArray[np.int64], token_ids: npt.NDArray[np.integer[Any]]
    ) -> None:
        """The tokens that `expect` counted. One at the end of the context is not kept: nothing can follow it."""
        kept = positions < self.max_model_len
        self.token_ids[rows[kept], positions[kept]] = token_ids[kept]
        known = self.pending_position[rows] == positions            # else a later token is pending by now
        self.pending_position[rows[known]] = NOT_PENDING

    def _grow(self) -> None:
        # Rows beyond max_num_seqs belong to preempted requests; they are rare, so growing may copy.
        old = len(self.num_tokens)
        for name in ("token_ids", "num_tokens", "num_prompt", "block_ids", "num_slots", "pending_place"):
            array = getattr(self, name)
            setattr(self, name, np.concatenate([array, np.zeros_like(array)]))
        self.pending_position = np.concatenate([self.pending_position, np.full(old, NOT_PENDING, np.int64)])
        self._free.extend(range(2 * old - 1, old - 1, -1))

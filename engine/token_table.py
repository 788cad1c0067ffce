"""TokenTable: the runner's own copy of every live request's tokens and blocks, as rows of two arrays."""

from dataclasses import dataclass

import numpy as np

from engine.request import GenerationRequest


@dataclass(slots=True)
class Row:
    """One request's place in the table."""

    index: int
    generation: GenerationRequest
    block_table: tuple[int, ...] = ()


class TokenTable:
    """Rows of token ids and block ids, gathered for a whole batch by one indexing operation.

    token_ids     int32 [num_rows, max_model_len]
    num_tokens    int64 [num_rows]
    num_prompt    int64 [num_rows]
    block_ids     int32 [num_rows, max_blocks]
    """

    def __init__(self, num_rows: int, max_model_len: int, block_size: int) -> None:
        self.block_size = block_size
        max_blocks = -(-max_model_len // block_size)
        self.token_ids = np.zeros((num_rows, max_model_len), np.int32)
        self.num_tokens = np.zeros(num_rows, np.int64)
        self.num_prompt = np.zeros(num_rows, np.int64)
        self.block_ids = np.zeros((num_rows, max_blocks), np.int32)
        self._free = list(range(num_rows - 1, -1, -1))
        self._rows: dict[str, Row] = {}                # request_id -> row

    def __getitem__(self, request_id: str) -> Row:
        return self._rows[request_id]

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._rows

    def add(self, generation: GenerationRequest, token_ids: tuple[int, ...]) -> Row:
        if not self._free:
            self._grow()
        row = self._rows[generation.request_id] = Row(self._free.pop(), generation)
        self.token_ids[row.index, : len(token_ids)] = token_ids
        self.num_tokens[row.index] = len(token_ids)
        self.num_prompt[row.index] = len(generation.prompt_token_ids)
        return row

    def remove(self, request_id: str) -> None:
        row = self._rows.pop(request_id, None)
        if row is not None:
            self._free.append(row.index)

    def set_block_table(self, row: Row, block_table: tuple[int, ...]) -> None:
        if row.block_table is not block_table:         # the scheduler makes a new tuple only when a table changes
            self.block_ids[row.index, : len(block_table)] = block_table
            row.block_table = block_table

    def append(self, rows: np.ndarray, token_ids: np.ndarray) -> None:
        """Add one token to each of `rows` (int64 [n]); a row that is full to the context keeps what it has."""
        ends = self.num_tokens[rows]
        fits = ends < self.token_ids.shape[1]
        self.token_ids[rows[fits], ends[fits]] = token_ids[fits]
        self.num_tokens[rows[fits]] += 1

    def _grow(self) -> None:
        # Rows beyond max_num_seqs belong to preempted requests; they are rare, so growing may copy.
        old = len(self.num_tokens)
        self.token_ids = np.concatenate([self.token_ids, np.zeros_like(self.token_ids)])
        self.num_tokens = np.concatenate([self.num_tokens, np.zeros_like(self.num_tokens)])
        self.num_prompt = np.concatenate([self.num_prompt, np.zeros_like(self.num_prompt)])
        self.block_ids = np.concatenate([self.block_ids, np.zeros_like(self.block_ids)])
        self._free.extend(range(2 * old - 1, old - 1, -1))

"""StepArrays: a plan laid out as arrays on the host, request after request, token after token."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.scheduling.plan import StepPlan
from engine.step.token_table import NOT_PENDING, Row, TokenTable

_Ints = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class StepArrays:
    """The scheduled tokens of all requests side by side, then rows that are computed and discarded.

    entry   r of num_entries: a request, in batch order; behind them padding, each on its request's own blocks
    tokens  of entry r are [query_start_loc[r], query_start_loc[r + 1])
    """

    input_ids: _Ints           # int64 [num_tokens]
    source: _Ints              # int64 [num_tokens]: place among the last step's samples of an id not known yet, else -1
    positions: _Ints           # int64 [num_tokens]
    rope_lengths: _Ints        # int64 [num_tokens]
    slot_mapping: _Ints        # int64 [num_tokens]; -1: write nothing
    query_start_loc: _Ints     # int32 [num_entries + 1]
    seq_lens: _Ints            # int32 [num_entries]
    block_table: _Ints         # int32 [num_entries, max_blocks]
    logits_indices: _Ints      # int64 [num_sampling]: the last token of each request that samples

    @classmethod
    def of_nothing(cls, max_blocks: int) -> "StepArrays":
        none = np.zeros(0, np.int64)
        return cls(
            input_ids=none, source=none, positions=none, rope_lengths=none, slot_mapping=none,
            query_start_loc=np.zeros(1, np.int64), seq_lens=none, block_table=np.zeros((0, max_blocks), np.int64),
            logits_indices=none,
        )  # fmt: skip

    @property
    def num_entries(self) -> int:
        return len(self.seq_lens)

    @property
    def max_query_len(self) -> int:
        return int(np.diff(self.query_start_loc).max())


def arrange(plan: StepPlan, table: TokenTable) -> tuple[StepArrays, list[Row], list[int]]:
    """`plan` as arrays; the rows of its requests in batch order; the places among these of those that sample."""
    rows = table.rows(plan.num_scheduled_tokens)
    table.set_block_tables(plan.block_tables)
    indices = [row.index for row in rows]
    starts = [plan.start[request_id] for request_id in plan.num_scheduled_tokens]
    query_lens = list(plan.num_scheduled_tokens.values())
    for request_id, num_rows in plan.padding.items():
        indices.append(table[request_id].index)
        starts.append(plan.start[request_id] + plan.num_scheduled_tokens.get(request_id, 0))
        query_lens.append(num_rows)
    sampling = _places(plan)
    arrays = _lay_out(table, _ints(indices), _ints(starts), _ints(query_lens), len(rows), _ints(sampling))
    return arrays, rows, sampling


def _places(plan: StepPlan) -> list[int]:
    """Those of the requests that sample, in batch order."""
    if len(plan.sampling) == len(plan.num_scheduled_tokens):
        return list(range(len(plan.sampling)))
    samples = frozenset(plan.sampling)
    return [i for i, request_id in enumerate(plan.num_scheduled_tokens) if request_id in samples]


def _ints(values: list[int]) -> npt.NDArray[np.int64]:
    return np.fromiter(values, np.int64, len(values))


def _lay_out(
    table: TokenTable, indices: npt.NDArray[np.int64], starts: npt.NDArray[np.int64],
    query_lens: npt.NDArray[np.int64], num_real: int, sampling: npt.NDArray[np.int64],
) -> StepArrays:  # fmt: skip
    """Entries from `num_real` on are padding: their ids are nothing, and beyond their blocks nothing is written."""
    limits = table.num_slots[indices]
    first_token = np.zeros(len(indices) + 1, np.int64)
    np.cumsum(query_lens, out=first_token[1:])
    row_of_token = np.repeat(indices, query_lens)
    wanted = np.arange(first_token[-1]) + np.repeat(starts - first_token[:-1], query_lens)
    positions = np.minimum(wanted, np.repeat(limits, query_lens) - 1)
    blocks = table.block_ids[row_of_token, positions // table.block_size].astype(np.int64)
    slots = np.where(wanted == positions, blocks * table.block_size + positions % table.block_size, -1)
    input_ids = table.token_ids[row_of_token, positions].astype(np.int64)
    source = np.where(
        table.pending_position[row_of_token] == positions, table.pending_place[row_of_token], NOT_PENDING
    )
    num_real_tokens = first_token[num_real]
    input_ids[num_real_tokens:], source[num_real_tokens:] = 0, NOT_PENDING
    seq_lens = np.minimum(starts + query_lens, limits)
    max_blocks = -(-int(seq_lens.max()) // table.block_size)
    return StepArrays(
        input_ids=input_ids,
        source=source,
        positions=positions,
        rope_lengths=np.maximum(table.num_prompt[row_of_token], positions + 1),
        slot_mapping=slots,
        query_start_loc=first_token,
        seq_lens=seq_lens,
        block_table=table.block_ids[indices, :max_blocks],
        logits_indices=first_token[1:][sampling] - 1,
    )


def pad_decode(arrays: StepArrays, batch_size: int) -> StepArrays:
    """A step of one token a request, filled up to `batch_size` with rows that see nothing and write nothing."""
    padded = _filled_up(arrays, batch_size, batch_size)
    return replace(padded, query_start_loc=np.arange(batch_size + 1), logits_indices=np.arange(batch_size))


def pad_rows(arrays: StepArrays, num_rows: int, num_entries: int) -> StepArrays:
    """Any step, filled up to `num_rows` rows and more entries: the first of these has all those rows, the others none.

    They see nothing and write nothing. The shapes of all but `logits_indices` depend on the two numbers alone.
    """
    ends = np.full(num_entries - arrays.num_entries, num_rows, arrays.query_start_loc.dtype)
    padded = _filled_up(arrays, num_rows, num_entries)
    return replace(padded, query_start_loc=np.concatenate([arrays.query_start_loc, ends]))


def _filled_up(arrays: StepArrays, num_rows: int, num_entries: int) -> StepArrays:
    def filled(values: _Ints, size: int, value: int) -> _Ints:
        missing = size - len(values)
        return np.concatenate([values, np.full((missing, *values.shape[1:]), value, values.dtype)])

    return replace(
        arrays,
        input_ids=filled(arrays.input_ids, num_rows, 0),
        source=filled(arrays.source, num_rows, NOT_PENDING),
        positions=filled(arrays.positions, num_rows, 0),
        rope_lengths=filled(arrays.rope_lengths, num_rows, 1),
        slot_mapping=filled(arrays.slot_mapping, num_rows, -1),
        seq_lens=filled(arrays.seq_lens, num_entries, 0),
        block_table=filled(arrays.block_table, num_entries, 0),
    )

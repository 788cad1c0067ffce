"""StepRows: what one plan makes the device compute, as the cost models count it."""

from collections.abc import Collection
from typing import NamedTuple

from engine.scheduling.plan import StepPlan


class StepRows(NamedTuple):
    """The rows of a step in entries, as the runner lays them out (`engine.step.arrays`).

    An entry is a request's tokens, or its padding: rows that cost what rows of tokens cost. Its rows are queries at
    positions [start, start + rows), each of which sees the keys up to its own. A tuple, for it is made faster than a
    frozen dataclass and a day has some ten million steps.
    """

    num_entries: int
    num_rows: int                                  # through every layer
    num_sampled: int                               # through the head as well
    single_starts: Collection[int]                 # start, of each entry that has one row
    chunks: Collection[tuple[int, int]] = ()       # (rows, start), of each that has several

    @property
    def num_single_keys(self) -> int:
        """Keys that single rows see: a decode's reading of the cache."""
        return sum(self.single_starts) + len(self.single_starts)

    @property
    def num_keys(self) -> int:
        """Keys read, each once an entry."""
        return self.num_single_keys + sum(rows + start for rows, start in self.chunks)

    @property
    def num_query_keys(self) -> int:
        """Pairs of a row and a key it sees: the arithmetic of attention."""
        return self.num_single_keys + sum(query_keys(rows, start) for rows, start in self.chunks)


def query_keys(num_rows: int, start: int, window: int = 0) -> int:
    """Pairs of a row at one of the positions [start, start + num_rows) and a key it sees, at most `window` (0: all)."""
    if window <= 0 or start + num_rows <= window:
        return num_rows * start + num_rows * (num_rows + 1) // 2
    growing = max(0, window - start)               # rows that see every key up to their own
    return growing * start + growing * (growing + 1) // 2 + (num_rows - growing) * window


def step_rows(plan: StepPlan, block_size: int) -> StepRows:
    """Takes some tens of ns a request where all decode: a day of a million requests has 10^8 of them."""
    scheduled = plan.num_scheduled_tokens
    num_rows = sum(scheduled.values())
    if num_rows == len(scheduled) and not plan.padding:
        return StepRows(num_rows, num_rows, len(plan.sampling), plan.start.values())
    entries = [(num_tokens, plan.start[request_id]) for request_id, num_tokens in scheduled.items()]
    for request_id, num_padding in plan.padding.items():
        num_rows += num_padding
        # Padding follows the request's tokens, and where its blocks end it stays on the last of them.
        most = len(plan.block_tables[request_id]) * block_size
        end = min(plan.start[request_id] + scheduled.get(request_id, 0) + num_padding, most)
        entries.append((num_padding, max(0, end - num_padding)))
    return StepRows(
        len(entries),
        num_rows,
        len(plan.sampling),
        [start for rows, start in entries if rows == 1],
        [entry for entry in entries if entry[0] > 1],
    )

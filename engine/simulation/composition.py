"""StepRows: what one plan makes the device compute, as the cost models count it."""

from collections.abc import Collection
from dataclasses import dataclass

from engine.scheduling.plan import StepPlan


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows of a step, padding rows among them: they cost what rows of tokens cost.

    A request's rows are queries at positions [start, start + rows), each of which sees the keys up to its own.
    """

    num_requests: int                              # with a row in the step, seats included
    num_rows: int                                  # through every layer
    num_sampled: int                               # through the head as well
    single_starts: Collection[int]                 # start, of each request that has one row
    chunks: Collection[tuple[int, int]] = ()       # (rows, start), of each that has several

    @property
    def num_single_keys(self) -> int:
        """Keys that single rows see: a decode's reading of the cache."""
        return sum(self.single_starts) + len(self.single_starts)

    @property
    def num_keys(self) -> int:
        """Keys read, each once a request."""
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


def step_rows(plan: StepPlan) -> StepRows:
    """Takes about 20 ns a request where all decode: a day of a million requests has 10^8 of them."""
    scheduled, start = plan.num_scheduled_tokens, plan.start
    if plan.padding:
        return _padded_rows(plan)
    num_rows = sum(scheduled.values())
    if num_rows == len(scheduled):
        return StepRows(num_rows, num_rows, len(plan.sampling), start.values())
    pairs = list(zip(scheduled.values(), start.values(), strict=True))   # both are filled in batch order
    return StepRows(
        len(scheduled),
        num_rows,
        len(plan.sampling),
        [first for rows, first in pairs if rows == 1],
        [pair for pair in pairs if pair[0] > 1],
    )


def _padded_rows(plan: StepPlan) -> StepRows:
    """A request's padding rows follow its tokens; a seat's follow what it had computed."""
    rows_of = dict(plan.num_scheduled_tokens)
    for request_id, num_rows in plan.padding.items():
        rows_of[request_id] = rows_of.get(request_id, 0) + num_rows
    pairs = [(num_rows, plan.start[request_id]) for request_id, num_rows in rows_of.items() if num_rows]
    return StepRows(
        len(pairs),
        sum(rows_of.values()),
        len(plan.sampling),
        [first for rows, first in pairs if rows == 1],
        [pair for pair in pairs if pair[0] > 1],
    )

"""What the simulator charges beside what the real runner computes."""

import numpy as np
import pytest

from engine.scheduling.plan import StepPlan
from engine.simulation.composition import step_rows
from engine.step.arrays import arrange
from engine.step.token_table import TokenTable
from tests.helpers import generation


@pytest.mark.parametrize("padding", [{}, {"a": 3, "seat": 1}, {"a": 40, "b": 5}])
def test_entries_are_those_that_the_runner_computes(padding):
    """Rows and length of each, as they go to the attention kernel."""
    table, start, block_size = TokenTable(8, 64, 4), {"a": 2, "b": 7, "seat": 5}, 4
    for request_id in start:
        table.add(generation(request_id, range(20)), tuple(range(20)))
    plan = StepPlan(
        {"a": 4, "b": 1}, start, {"a": (0, 1), "b": (2, 3, 4), "seat": (5, 6)}, sampling=("b",), padding=padding
    )
    arrays, *_ = arrange(plan, table)
    rows = step_rows(plan, block_size)
    computed = zip(np.diff(arrays.query_start_loc).tolist(), arrays.seq_lens.tolist(), strict=True)
    entries = [(1, start) for start in rows.single_starts] + list(rows.chunks)
    assert sorted((count, start + count) for count, start in entries) == sorted(
        (count, max(count, length)) for count, length in computed    # more padding than blocks hold sees all of them
    )
    assert rows.num_rows == len(arrays.input_ids)

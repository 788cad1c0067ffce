"""Plans as arrays, in integers: blocks of 4 slots, token ids that name their request and position."""

import numpy as np
import pytest

from engine.scheduling.plan import StepPlan
from engine.step.arrays import arrange, pad_decode, pad_rows
from engine.step.token_table import TokenTable
from tests.helpers import generation

BLOCK_SIZE, CONTEXT = 4, 16


def table_of(**prompts: list[int]) -> TokenTable:
    table = TokenTable(len(prompts), CONTEXT, BLOCK_SIZE)
    for request_id, prompt in prompts.items():
        table.add(generation(request_id, prompt), tuple(prompt))
    return table


def lists(arrays, *names):
    return tuple(getattr(arrays, name).tolist() for name in names)


@pytest.fixture
def mixed():
    """`a` computes positions 2 to 5 of its prompt, not the last; `b` its last token, the sixth."""
    table = table_of(a=[10, 11, 12, 13, 14, 15, 16], b=[20, 21, 22, 23, 24, 25])
    plan = StepPlan({"a": 4, "b": 1}, {"a": 2, "b": 5}, {"a": (7, 3), "b": (5, 2)}, sampling=("b",))
    return plan, table


def test_tokens_of_all_requests_stand_side_by_side(mixed):
    arrays, rows, sampling = arrange(*mixed)
    assert [row.generation.request_id for row in rows] == ["a", "b"]
    assert lists(arrays, "input_ids", "positions") == ([12, 13, 14, 15, 25], [2, 3, 4, 5, 5])
    assert lists(arrays, "slot_mapping") == ([30, 31, 12, 13, 9],)          # block 7 · 4 + 2, …, block 2 · 4 + 1
    assert lists(arrays, "query_start_loc", "seq_lens") == ([0, 4, 5], [6, 6])
    assert lists(arrays, "block_table", "logits_indices") == ([[7, 3], [5, 2]], [4])
    assert (sampling, arrays.max_query_len) == ([1], 4)


def test_block_tables_belong_to_requests_not_to_places(mixed):
    plan, table = mixed
    shuffled = StepPlan(plan.num_scheduled_tokens, plan.start, dict(reversed(plan.block_tables.items())))
    arrays, _, _ = arrange(shuffled, table)
    assert lists(arrays, "slot_mapping") == ([30, 31, 12, 13, 9],)


def test_a_token_that_is_still_on_the_device_is_named_by_its_place():
    table = table_of(a=[10], b=[20, 21])
    indices = np.array([table["b"].index, table["a"].index])
    assert table.expect(indices).tolist() == [2, 1]
    plan = StepPlan({"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": (0,), "b": (1,)}, sampling=("a", "b"))
    arrays, _, _ = arrange(plan, table)
    assert lists(arrays, "source", "positions") == ([1, 0], [1, 2])
    table.fill(indices, np.array([2, 1]), np.array([77, 88]))
    arrays, _, _ = arrange(plan, table)
    assert lists(arrays, "source", "input_ids") == ([-1, -1], [88, 77])


def test_a_token_that_came_in_does_not_hide_the_next_one_that_is_pending():
    table = table_of(a=[10])
    index = np.array([table["a"].index])
    first, second = table.expect(index), table.expect(index)
    table.fill(index, first, np.array([77]))
    plan = StepPlan({"a": 1}, {"a": 2}, {"a": (0,)}, sampling=("a",))
    assert lists(arrange(plan, table)[0], "source", "positions") == ([0], second.tolist())


def test_padding_rows_come_last_and_lie_in_the_slots_of_their_request():
    """A prompt of 2 padded by 3 rows; and one row for the seat of `b`, which has ended after 5 tokens."""
    table = table_of(a=[10, 11], b=[20, 21, 22, 23, 24])
    plan = StepPlan(
        {"a": 2}, {"a": 0, "b": 5}, {"a": (1, 2), "b": (3, 4)}, sampling=("a",), padding={"a": 3, "b": 1}
    )
    arrays, rows, sampling = arrange(plan, table)
    assert (len(rows), sampling, arrays.num_entries) == (1, [0], 3)
    assert lists(arrays, "query_start_loc", "seq_lens") == ([0, 2, 5, 6], [2, 5, 6])
    assert lists(arrays, "input_ids", "positions") == ([10, 11, 0, 0, 0, 0], [0, 1, 2, 3, 4, 5])
    assert lists(arrays, "slot_mapping", "logits_indices") == ([4, 5, 6, 7, 8, 17], [1])
    assert lists(arrays, "block_table") == ([[1, 2], [1, 2], [3, 4]],)


def test_padding_beyond_the_reserved_slots_writes_nothing():
    table = table_of(a=[10, 11, 12])
    plan = StepPlan({"a": 3}, {"a": 0}, {"a": (6,)}, sampling=("a",), padding={"a": 3})
    arrays, _, _ = arrange(plan, table)
    assert lists(arrays, "slot_mapping", "seq_lens") == ([24, 25, 26, 27, -1, -1], [3, 4])
    assert lists(arrays, "positions") == ([0, 1, 2, 3, 3, 3],)


def test_padding_stops_at_the_context():
    table = TokenTable(1, 14, BLOCK_SIZE)
    table.add(generation("a", range(12)), tuple(range(12)))
    plan = StepPlan({"a": 12}, {"a": 0}, {"a": (0, 1, 2, 3)}, sampling=("a",), padding={"a": 4})
    arrays, _, _ = arrange(plan, table)
    assert lists(arrays, "positions") == ([*range(12), 12, 13, 13, 13],)
    assert arrays.slot_mapping[-4:].tolist() == [12, 13, -1, -1]


def test_a_decode_step_is_filled_up_with_rows_that_see_and_write_nothing():
    table = table_of(a=[10, 11, 12])
    arrays, _, _ = arrange(StepPlan({"a": 1}, {"a": 2}, {"a": (6,)}, sampling=("a",)), table)
    padded = pad_decode(arrays, 3)
    assert lists(padded, "input_ids", "positions", "source") == ([12, 0, 0], [2, 0, 0], [-1, -1, -1])
    assert lists(padded, "slot_mapping", "seq_lens", "query_start_loc") == ([26, -1, -1], [3, 0, 0], [0, 1, 2, 3])
    assert lists(padded, "block_table", "logits_indices") == ([[6], [0], [0]], [0, 1, 2])


def test_any_step_is_filled_up_with_one_entry_that_has_all_the_rows_and_others_that_have_none():
    table = table_of(a=[10, 11, 12], b=[20])
    plan = StepPlan({"a": 2, "b": 1}, {"a": 1, "b": 0}, {"a": (6,), "b": (7,)}, sampling=("a",))
    arrays, _, _ = arrange(plan, table)
    for num_rows, starts in ((5, [0, 2, 3, 5, 5]), (3, [0, 2, 3, 3, 3])):
        padded = pad_rows(arrays, num_rows, 4)
        rest = num_rows - 3
        assert lists(padded, "input_ids", "positions") == ([11, 12, 20, *[0] * rest], [1, 2, 0, *[0] * rest])
        assert lists(padded, "source", "rope_lengths") == ([-1] * num_rows, [3, 3, 1, *[1] * rest])
        assert lists(padded, "slot_mapping", "seq_lens") == ([25, 26, 28, *[-1] * rest], [3, 1, 0, 0])
        assert lists(padded, "query_start_loc", "logits_indices") == (starts, [1])
        assert lists(padded, "block_table") == ([[6], [7], [0], [0]],)


def test_a_row_taken_over_has_the_room_of_its_own_blocks():
    table = table_of(a=[10, 11, 12])
    arrange(StepPlan({"a": 3}, {"a": 0}, {"a": (6, 7)}), table)
    index = table["a"].index
    assert table.num_slots[index] == 8
    table.remove("a")
    assert table.add(generation("b", [20]), (20,)).index == index
    assert table.num_slots[index] == 0
    arrange(StepPlan({"b": 1}, {"b": 0}, {"b": (1,)}), table)
    assert table.num_slots[index] == 4

import pytest

from engine.scheduling.plan import StepPlan
from engine.simulation.composition import query_keys, step_rows


def plan(scheduled, start, sampling=(), padding=None):
    return StepPlan(scheduled, start, dict.fromkeys(start, (0,)), sampling=sampling, padding=padding or {})


def test_decodes_alone():
    rows = step_rows(plan({"a": 1, "b": 1}, {"a": 9, "b": 4}, ("a", "b")), 4)
    assert (rows.num_entries, rows.num_rows, rows.num_sampled) == (2, 2, 2)
    assert list(rows.single_starts) == [9, 4] and not rows.chunks
    assert rows.num_single_keys == rows.num_keys == rows.num_query_keys == 10 + 5


def test_prompts_beside_decodes():
    rows = step_rows(plan({"a": 1, "b": 3, "c": 1}, {"a": 9, "b": 4, "c": 0}, ("a",)), 4)
    assert (rows.num_entries, rows.num_rows, rows.num_sampled) == (3, 5, 1)
    assert list(rows.single_starts) == [9, 0] and list(rows.chunks) == [(3, 4)]
    assert rows.num_keys == 10 + 1 + 7
    assert rows.num_query_keys == 10 + 1 + (5 + 6 + 7)


def test_padding_follows_the_tokens_and_samples_nothing():
    rows = step_rows(plan({"a": 2, "b": 4}, {"a": 0, "b": 0}, ("a", "b"), {"a": 2}), 4)
    assert (rows.num_entries, rows.num_rows, rows.num_sampled) == (3, 8, 2)
    assert list(rows.chunks) == [(2, 0), (4, 0), (2, 2)]
    assert rows.num_query_keys == 2 * (1 + 2 + 3 + 4)  # what two prompts of four have


def test_padding_beyond_its_blocks_stays_on_the_last_of_them():
    rows = step_rows(plan({"a": 2}, {"a": 1}, ("a",), {"a": 4}), 4)
    assert list(rows.chunks) == [(2, 1), (4, 0)]       # positions 3 to 6 are wanted, the only block ends at 4


def test_a_seat_costs_what_a_decode_at_its_place_costs():
    decoding = step_rows(plan({"a": 1, "b": 1}, {"a": 9, "b": 3}, ("a",)), 16)
    seated = step_rows(plan({"a": 1}, {"a": 9, "b": 3}, ("a",), {"b": 1}), 16)
    assert list(seated.single_starts) == list(decoding.single_starts)
    assert (seated.num_entries, seated.num_rows, seated.num_sampled) == (2, 2, 1)
    assert seated.num_query_keys == decoding.num_query_keys


def test_a_seat_planned_before_the_members_is_told_apart_by_name_not_by_place():
    rows = step_rows(plan({"a": 3}, {"seat": 7, "a": 0}, ("a",), {"seat": 1}), 16)
    assert list(rows.single_starts) == [7] and list(rows.chunks) == [(3, 0)]


@pytest.mark.parametrize("window", [0, 1, 2, 5, 100])
@pytest.mark.parametrize("start", [0, 1, 4, 5, 6])
@pytest.mark.parametrize("num_rows", [1, 2, 6])
def test_query_keys_counts_what_each_row_sees(num_rows, start, window):
    seen = [min(position + 1, window or position + 1) for position in range(start, start + num_rows)]
    assert query_keys(num_rows, start, window) == sum(seen)

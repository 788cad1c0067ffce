import pytest

from bench.goals import Goal, goal_table


@pytest.mark.parametrize(
    ("value", "at_least", "reached"),
    [(1.0, False, True), (1.001, False, False), (1.0, True, True), (0.999, True, False), (None, False, False)],
)
def test_a_bound_is_reached_at_the_bound_and_never_without_a_value(value, at_least, reached):
    goal = Goal("figure", value, 1.0, "ms", at_least)
    assert goal.is_reached is reached
    assert goal.to_json()["is_reached"] is reached


def test_the_table_says_which_are_reached():
    table = goal_table([Goal("a", 0.5, 1.0, "s"), Goal("b", 0.5, 1.0, "x", at_least=True), Goal("c", None, 1.0)])
    _, a, b, c = table.splitlines()
    assert a.startswith("a ") and a.endswith(" reached") and "NOT" not in a and "≤ 1" in a
    assert b.endswith("NOT reached") and "≥ 1" in b
    assert c.endswith("not measured")

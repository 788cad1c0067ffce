import pytest

from bench.plots.__main__ import part_of
from bench.plots.slots import slots_figure
from bench.step_trace import Step, StepRow, StepTrace

TRACE = StepTrace(
    {"policy": "static", "block_size": 4},
    (
        Step(0.0, 2.0, (StepRow("a", "prefill", 0, 4, 1), StepRow("b", "prefill", 0, 3, 1, padding=1))),
        Step(2.0, 3.0, (StepRow("a", "decode", 4, 1, 2), StepRow("b", "seat", 3, 0, 1, padding=1))),
        Step(3.0, 4.0, (StepRow("a", "decode", 5, 1, 2), StepRow("b", "seat", 3, 0, 1, padding=1))),
    ),
    {"a": 4.0, "b": 2.0},
)


def boxes(figure):
    """(left, width, colour) of what is drawn, without the slots' background."""
    return [
        (patch.get_x(), patch.get_width(), patch.get_facecolor()[:3])
        for axes in figure.axes
        for patch in axes.patches[2:]
    ]


def test_a_panel_says_what_was_used_and_what_discarded():
    figure = slots_figure([("static", TRACE)], title="t")
    assert figure.axes[0].get_title(loc="left") == "static: 3 iterations, 9 rows used, 3 discarded"


@pytest.mark.parametrize(("by", "edges"), [("iteration", (0, 1, 3)), ("time", (0, 2, 4))])
def test_stretches_lie_where_their_iterations_do(by, edges):
    drawn = boxes(slots_figure([("static", TRACE)], title="t", by=by))
    first, second, end = edges
    of_a = [(left, width) for left, width, _ in drawn[:2]]
    assert of_a == [(first, second - first), (second, end - second)]


def test_a_request_has_one_colour_in_every_panel():
    drawn = boxes(slots_figure([("static", TRACE), ("again", TRACE)], title="t"))
    half = len(drawn) // 2
    assert [shade for *_, shade in drawn[:half]] == [shade for *_, shade in drawn[half:]]


def test_part_of_a_trace_has_no_ends_that_come_later():
    part = part_of(TRACE, 0, 1)
    assert len(part.steps) == 1
    assert part.finished_s == {"b": 2.0}
    with pytest.raises(SystemExit, match="3 steps, none from 7"):
        part_of(TRACE, 7, 1)

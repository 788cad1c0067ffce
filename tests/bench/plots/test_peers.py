"""That the picture draws what it is given; how it looks, a person must see."""

import pytest
from matplotlib.colors import to_rgba

from bench.plots.peers import comparison_figure
from bench.plots.style import save

BARS = {
    "ours": {"ratios": (6.0, 7.0, 6.5), "colour": "#0072B2", "failure": None},
    "peer": {"ratios": (1.0, 1.0, 1.0), "colour": "#888888", "failure": None},
    "broken": {"ratios": (), "colour": "#CC79A7", "failure": "no wheel for this Python, nor a source that builds"},
    "skipped": {"ratios": (), "colour": "#CC79A7", "failure": None},
}


@pytest.fixture
def drawn():
    return comparison_figure({"burst 128": BARS, "single": BARS}, base="peer", title="t", text="x")


def test_a_panel_a_workload_a_bar_a_system_at_the_median(drawn):
    assert [axes.get_title(loc="left") for axes in drawn.axes] == ["burst 128", "single"]
    assert [axes.get_xlabel() for axes in drawn.axes] == ["times peer", "times peer"]
    bars = [bar for container in drawn.axes[0].containers for bar in container]
    assert [bar.get_width() for bar in bars] == [6.5, 1.0]
    assert [bar.get_facecolor() for bar in bars] == [to_rgba("#0072B2"), to_rgba("#888888")]
    assert [label.get_text() for label in drawn.axes[0].get_yticklabels()] == list(BARS)


def test_each_repeat_is_a_dot(drawn):
    assert [list(line.get_xdata()) for line in drawn.axes[0].lines] == [[6.0, 7.0, 6.5], [1.0, 1.0, 1.0]]


def test_a_system_without_a_ratio_says_why(drawn):
    texts = [text.get_text() for text in drawn.axes[0].texts]
    assert texts == ["6.50×", "1.00×", "failed: no wheel for this Python, nor a sou…", "not run"]


def test_it_is_saved_even_if_nothing_ran(tmp_path):
    nothing = {"burst 8": {"broken": BARS["broken"]}}
    path = save(comparison_figure(nothing, base="peer", title="t", text="x"), tmp_path / "p.png")
    assert path.read_bytes().startswith(b"\x89PNG")

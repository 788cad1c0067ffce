"""That each picture draws what it is given; how it looks, a person must see."""

import pytest
from matplotlib.colors import to_rgba

from bench.plots import sweep
from bench.plots.style import colour, save
from bench.policies.findings import splits
from tests.bench.policies.fakes import run

BURSTS = [
    run(policy, speed / (1 + cap / 1000), cap=cap)
    for cap in (32, 1536)
    for policy, speed in (("static", 100.0), ("orca", 250.0), ("vllm_v0", 300.0))
]
LATENCIES = [run(policy, 100.0, rate=rate) for rate in (1.0, 4.0) for policy in ("static", "orca", "chunked")]


def texts(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_throughput_has_a_bar_a_policy_and_a_panel_a_cap():
    figure = sweep.throughput_figure(BURSTS, title="t", text="x")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["cap 32", "cap 1536"]
    first = figure.axes[0].containers[0]
    assert [bar.get_width() for bar in first] == pytest.approx([100 / 1.032, 250 / 1.032, 300 / 1.032])
    assert [bar.get_facecolor() for bar in first] == [to_rgba(colour(p)) for p in ("static", "orca", "vllm_v0")]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["static", "orca", "vllm_v0"]


def test_ratios_are_to_static_at_the_same_cap():
    assert texts(sweep.ratio_figure(BURSTS, title="t", text="x")) == ["1.00×", "2.50×", "3.00×"] * 2


def test_of_repeats_the_median_is_drawn():
    runs = [run("static", 100.0, repeat=i) for i in range(3)]
    runs += [run("orca", speed, repeat=i) for i, speed in enumerate((110.0, 900.0, 200.0))]
    assert texts(sweep.ratio_figure(runs, title="t", text="x")) == ["1.00×", "2.00×"]


def test_latencies_have_a_panel_a_family_and_a_rate():
    figure = sweep.latency_figure(LATENCIES, title="t", text="x")
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == [
        "request level, 1 request/s", "request level, 4 requests/s", "reserves the maximum, 1 request/s",
        "reserves the maximum, 4 requests/s", "pages, 1 request/s", "pages, 4 requests/s",
    ]  # fmt: skip
    labels = [text.get_text() for text in figure.axes[2].get_legend().get_texts()]
    assert labels == ["orca, median 2.0 s", "static (for comparison)", "chunked (for comparison)"]


def test_reported_ratios_are_taken_apart():
    runs = [run("static", 81.0), run("vllm_v0", 486.0)]
    figure = sweep.split_figure(splits(runs), title="t", text="x")
    assert texts(figure) == ["policy 6.00×, against that baseline 6.0×, reported 23×"]


@pytest.mark.parametrize("draw", [sweep.occupancy_figure, sweep.waste_figure])
def test_pictures_of_steps_are_drawn(draw, tmp_path):
    path = save(draw(BURSTS[3:], title="t", text="x"), tmp_path / "p.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_waste_says_how_blocks_were_reserved():
    told = texts(sweep.waste_figure(BURSTS[3:], title="t", text="x"))
    held = ("its maximum", "its maximum", "what it needs")
    assert told == [f"10% wasted; holds {what}, in blocks of 16" for what in held]

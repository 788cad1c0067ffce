"""The picture of a comparison with peers: one panel a workload, one bar a system, a dot for each repeat."""

import statistics
from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.peers.goals import cut
from bench.plots.style import GREY, caption, figure

# label of a system -> {"ratios": one a repeat, "colour", "failure": why there are none, or None}
Bars = Mapping[str, Mapping[str, Any]]


def comparison_figure(panels: Mapping[str, Bars], *, base: str, title: str, text: str) -> Figure:
    """`panels`: label of a workload -> bars; `base`: what ratios are to.

    A system without a ratio keeps its place, with the reason.
    """
    num_bars = max(len(bars) for bars in panels.values())
    width = max(11.0, 4.3 * len(panels) + 2.6)               # the caption is a line
    drawn, axes = figure(1, len(panels), figsize=(width, 0.42 * num_bars + 1.9), sharey=True)
    for of_axes, (label, bars) in zip(axes[0], panels.items(), strict=True):
        _panel(of_axes, label, bars)
        of_axes.set_xlabel(f"times {base}", fontsize=10)
    caption(drawn, title, text)
    return drawn


def _panel(of_axes: Axes, label: str, bars: Bars) -> None:
    longest = max((max(bar["ratios"]) for bar in bars.values() if bar["ratios"]), default=1.0)
    for place, bar in enumerate(bars.values()):
        if not bar["ratios"]:
            reason = f"failed: {bar['failure']}" if bar["failure"] else "not run"
            shown = reason if len(reason) <= 44 else reason[:43] + "…"
            of_axes.text(0.02 * longest, place, shown, va="center", fontsize=8.5, color=GREY, style="italic")
            continue
        median = statistics.median(bar["ratios"])
        of_axes.barh(place, median, color=bar["colour"], height=0.72)
        if len(bar["ratios"]) > 1:
            of_axes.plot(
                bar["ratios"], [place] * len(bar["ratios"]), "o", color="white", markeredgecolor="black",
                markersize=4.5, markeredgewidth=0.8, linestyle="none",
            )  # fmt: skip
        told = f"{cut(median)}×"
        of_axes.text(max(bar["ratios"]) + 0.025 * longest, place, told, va="center", fontsize=10)
    of_axes.set_yticks(range(len(bars)), list(bars), fontsize=10)
    of_axes.set(title=label, xlim=(0, 1.2 * longest), ylim=(len(bars) - 0.4, -0.6))
    of_axes.tick_params(axis="y", length=0)
    of_axes.grid(axis="x", color="#E4E4E4", linewidth=0.8)
    of_axes.set_axisbelow(True)
    of_axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}×")

"""The picture that made continuous batching known: slots by iterations, coloured by request."""

from collections.abc import Iterable, Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from bench.plots.style import GREY, REQUEST_COLOURS, caption, figure, tint
from bench.step_trace import WORK, Bar, StepTrace, slot_bars

_HEIGHT = 0.86                              # of a slot's bar
_CELLS = 110                                # up to so many iterations each is set apart from the next by a line


def slots_figure(
    traces: Sequence[tuple[str, StepTrace]], *, title: str, text: str = "", by: str = "iteration"
) -> Figure:
    """One panel a trace, one above the other, on one horizontal axis. `by`: iteration or time.

    A request keeps its colour in every panel, if the traces number requests alike.
    """
    bars = [slot_bars(trace) for _, trace in traces]
    num_slots = [1 + max((bar.slot for bar in of_trace), default=0) for of_trace in bars]
    colours = _colours(trace for _, trace in traces)
    end = max(_edges(trace, by)[-1] for _, trace in traces)
    height = sum(0.55 + 0.3 * slots for slots in num_slots) + 1.5
    drawn, axes = figure(len(traces), 1, figsize=(12, height), sharex=True, height_ratios=[2 + n for n in num_slots])
    for (name, trace), of_trace, slots, of_axes in zip(traces, bars, num_slots, axes[:, 0], strict=True):
        _panel(of_axes, trace, of_trace, slots, colours, by, end)
        of_axes.set_title(f"{name}: {_told(trace, by)}")
    axes[-1, 0].set_xlabel("iteration" if by == "iteration" else "seconds")
    caption(drawn, title, text)
    drawn.legend(handles=_legend(), loc="outside lower right", ncols=6, fontsize=9.5, handlelength=1.4)
    return drawn


def _told(trace: StepTrace, by: str) -> str:
    idle = sum(step.num_rows("idle") for step in trace.steps)
    used = sum(step.num_rows(kind) for step in trace.steps for kind in WORK)
    length = f"{len(trace.steps)} iterations"
    if by == "time":
        length = f"{trace.steps[-1].ended_s - trace.steps[0].begun_s:.2f} s, {length}"
    return f"{length}, {used} rows used, {idle} discarded"


def _colours(traces: Iterable[StepTrace]) -> dict[str, str]:
    ids = {row.request_id for trace in traces for step in trace.steps for row in step.rows}
    ordered = sorted(ids, key=lambda request_id: (len(request_id), request_id))
    return {request_id: REQUEST_COLOURS[i % len(REQUEST_COLOURS)] for i, request_id in enumerate(ordered)}


def _panel(
    axes: Axes, trace: StepTrace, bars: Sequence[Bar], slots: int, colours: dict[str, str], by: str, end: float
) -> None:
    edges = _edges(trace, by)
    axes.set(xlim=(0, end), ylim=(slots - 0.4, -0.6), yticks=range(slots), ylabel="slot")
    axes.set_yticklabels([str(slot + 1) for slot in range(slots)], fontsize=9)
    axes.tick_params(axis="y", length=0)
    for slot in range(slots):
        axes.add_patch(Rectangle((0, slot - _HEIGHT / 2), edges[-1], _HEIGHT, facecolor="#F6F6F6", linewidth=0))
    for bar in bars:
        _draw(axes, bar, edges, colours[bar.request_id], end / 330)
    if by == "iteration" and end <= _CELLS:
        for edge in edges[1:-1]:
            axes.axvline(edge, color="white", linewidth=0.8)
    _numbers(axes, bars, edges, end)


def _edges(trace: StepTrace, by: str) -> list[float]:
    """Where each iteration begins on the horizontal axis, and where the last one ends."""
    if by == "iteration":
        return [float(i) for i in range(len(trace.steps) + 1)]
    start_s = trace.steps[0].begun_s
    return [*(step.begun_s - start_s for step in trace.steps), trace.steps[-1].ended_s - start_s]


def _draw(axes: Axes, bar: Bar, edges: Sequence[float], colour: str, mark: float) -> None:
    left, right = edges[bar.first], edges[bar.end]
    looks = {
        "prefill": {"facecolor": colour},
        "decode": {"facecolor": tint(colour, 0.38)},
        "paused": {"facecolor": "none", "edgecolor": colour, "linewidth": 1.0, "linestyle": ":"},
    }.get(bar.kind, {"facecolor": "white", "edgecolor": "#999999", "hatch": "////", "linewidth": 0})
    axes.add_patch(Rectangle((left, bar.slot - _HEIGHT / 2), right - left, _HEIGHT, **{"linewidth": 0, **looks}))
    if bar.ends:
        corner = right - mark, bar.slot - _HEIGHT / 2
        axes.add_patch(Rectangle(corner, mark, _HEIGHT, facecolor="#111111", linewidth=0, zorder=3))
    if bar.is_preempted:
        axes.plot(right, bar.slot, marker="X", markersize=7, color="#111111", markeredgecolor="white", zorder=3)


def _numbers(axes: Axes, bars: Sequence[Bar], edges: Sequence[float], axis_end: float) -> None:
    """A request's number in its longest stretch of decoding, where there is room for it."""
    longest: dict[str, Bar] = {}
    for bar in bars:
        known = longest.get(bar.request_id, bar)
        if bar.kind == "decode" and bar.end - bar.first >= known.end - known.first:
            longest[bar.request_id] = bar
    for request_id, bar in longest.items():
        left, right = edges[bar.first], edges[bar.end]
        if (right - left) / axis_end > 0.018:
            axes.text((left + right) / 2, bar.slot, request_id, ha="center", va="center", fontsize=8.5, color="#111111")


def _legend() -> list[Artist]:
    blue = REQUEST_COLOURS[0]
    return [
        Patch(facecolor=blue, label="prefill"),
        Patch(facecolor=tint(blue, 0.38), label="decode"),
        Patch(facecolor="white", edgecolor="#999999", hatch="////", linewidth=0, label="computed and discarded"),
        Patch(facecolor="none", edgecolor=blue, linestyle=":", label="holds its blocks, waits"),
        Patch(facecolor="#111111", edgecolor=GREY, label="end"),
        Line2D([], [], linestyle="", marker="X", markersize=8, color="#111111", label="preempted"),
    ]

"""Pictures of a sweep over policies: throughput, ratios, latencies, occupancy, waste. One function a picture."""

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.plots.style import FAMILIES, GREY, KIND_COLOURS, caption, colour, dashes, figure, tint
from bench.policies.cases import reservation
from bench.policies.findings import Split
from bench.policies.runs import PolicyRun

_COMPARED = {"static": "-", "chunked": (0, (5, 2))}   # drawn in every panel of latencies, in grey: policy -> dashes


def throughput_figure(runs: Sequence[PolicyRun], *, title: str, text: str) -> Figure:
    """Tokens/s, prompts and outputs, one panel a cap; the share of output tokens is the darker part of each bar."""
    return _bars_by_cap(
        runs, title=title, text=text, label="tokens/s (prompt + output)",
        value=lambda run, _: run.summary.total_tokens_per_s, form="{:,.0f}",
        darker=lambda run: run.summary.output_tokens_per_s,
    )  # fmt: skip


def ratio_figure(runs: Sequence[PolicyRun], *, title: str, text: str) -> Figure:
    """The same as a multiple of `static` at the same cap: one engine, equal kernels, policies only."""
    return _bars_by_cap(
        runs, title=title, text=text, label="times static",
        value=lambda run, static: run.summary.total_tokens_per_s / static.summary.total_tokens_per_s, form="{:.2f}×",
    )  # fmt: skip


def _bars_by_cap(
    runs: Sequence[PolicyRun], *, title: str, text: str, label: str, value: Callable[[PolicyRun, PolicyRun], float],
    form: str, darker: Callable[[PolicyRun], float] | None = None,
) -> Figure:  # fmt: skip
    """`value` is of a run and of `static` at the same cap; `darker` is the part of it that is drawn darker."""
    caps = sorted({run.cap for run in runs})
    labels = list(dict.fromkeys(run.case.label for run in runs))
    drawn, axes = figure(1, len(caps), figsize=(3.2 * len(caps) + 2.2, 0.36 * len(labels) + 1.9), sharey=True)
    for cap, of_axes in zip(caps, axes[0], strict=True):
        of_cap = _medians([run for run in runs if run.cap == cap])
        static = of_cap["static"]
        values = {name: value(of_cap[name], static) for name in labels if name in of_cap}
        places = [labels.index(name) for name in values]
        colours = [_shade(of_cap[name]) for name in values]
        bars = of_axes.barh(places, list(values.values()), color=colours, height=0.74)
        of_axes.bar_label(bars, [form.format(number) for number in values.values()], padding=3, fontsize=9)
        if darker is not None:
            of_axes.barh(places, [darker(of_cap[name]) for name in values], color="#00000055", height=0.74)
        of_axes.set(title=f"cap {cap}", xlabel=label, xlim=(0, 1.24 * max(values.values())))
        of_axes.set_yticks(range(len(labels)), labels, fontsize=10)
        of_axes.set_ylim(len(labels) - 0.4, -0.6)
        of_axes.tick_params(axis="y", length=0)
        of_axes.grid(axis="x", color="#E4E4E4", linewidth=0.8)
        of_axes.set_axisbelow(True)
        of_axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    caption(drawn, title, text)
    return drawn


def _medians(runs: Sequence[PolicyRun]) -> dict[str, PolicyRun]:
    """Per label the repeat whose throughput is the median (of an even number the lower)."""
    by_label: dict[str, list[PolicyRun]] = {}
    for run in runs:
        by_label.setdefault(run.case.label, []).append(run)
    return {
        label: sorted(same, key=lambda run: run.summary.total_tokens_per_s)[(len(same) - 1) // 2]
        for label, same in by_label.items()
    }


def _shade(run: PolicyRun) -> object:
    return tint(colour(run.case.policy), 0.55) if run.case.variant else colour(run.case.policy)


def split_figure(splits: Sequence[Split], *, title: str, text: str) -> Figure:
    """Reported ratios taken apart: what the policy explains, and what the engine would show against that baseline."""
    drawn, axes = figure(1, 1, figsize=(11, 0.62 * len(splits) + 1.9))
    of_axes = axes[0, 0]
    for place, split in enumerate(splits):
        shade, like, factor = colour(split.policy), split.like_for_like, split.with_factor
        of_axes.barh(place, like, height=0.62, color=shade)
        of_axes.barh(
            place, factor - like, left=like, height=0.62, color="white", edgecolor=shade, hatch="////", linewidth=1
        )
        of_axes.plot(split.reported, place, marker="D", markersize=9, color="black", markeredgecolor="white", zorder=3)
        told = f"policy {like:.2f}×, against that baseline {factor:.1f}×, reported {split.reported:g}×"
        of_axes.text(max(factor, split.reported) + 0.7, place, told, va="center", fontsize=10)
    names = [f"{split.policy}\n({split.system})" for split in splits]
    of_axes.set_yticks(range(len(splits)), names, fontsize=9.5)
    longest = max(max(split.with_factor, split.reported) for split in splits)
    of_axes.set(xlim=(0, 1.78 * longest), ylim=(len(splits) - 0.4, -0.6), xlabel="times static batching")
    of_axes.tick_params(axis="y", length=0)
    caption(drawn, title, text)
    return drawn


def latency_figure(runs: Sequence[PolicyRun], *, title: str, text: str) -> Figure:
    """Cumulative distributions of the time from a request's arrival to its last token: rates across, families down."""
    rates = sorted({run.rate for run in runs if run.rate is not None})
    plain = [run for run in runs if not run.case.variant]
    families = [name for name, members in FAMILIES.items() if any(run.case.policy in members for run in plain)]
    drawn, axes = figure(
        len(families), len(rates), figsize=(5.4 * len(rates) + 1, 2.25 * len(families) + 1.2), sharex="col", sharey=True
    )
    for column, rate in enumerate(rates):
        of_rate = _medians([run for run in plain if run.rate == rate])
        longest = max(np.quantile(run.e2el_s, 0.97) for run in of_rate.values())
        shortest = min(min(run.e2el_s) for run in of_rate.values())
        for place, family in enumerate(families):
            of_axes = axes[place, column]
            for policy in (policy for policy in of_rate if policy in FAMILIES[family]):
                _distribution(of_axes, of_rate[policy], colour(policy), dashes(policy), 2.2, policy)
            for policy, dash in _COMPARED.items():
                if policy in of_rate and policy not in FAMILIES[family]:
                    _distribution(of_axes, of_rate[policy], "#BBBBBB", dash, 1.4, f"{policy} (for comparison)")
            of_axes.set(ylim=(0, 1.02), xlim=(shortest, longest), xscale="log")
            of_axes.grid(color="#EEEEEE", linewidth=0.8)
            of_axes.legend(loc="upper left", fontsize=8.5, handlelength=2.6)
            of_axes.set_title(f"{family}, {rate:g} request{'s' if rate != 1 else ''}/s", fontsize=11)
        axes[-1, column].set_xlabel("seconds from arrival to the last token")
        axes[-1, column].xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    for of_axes in axes[:, 0]:
        of_axes.set_ylabel("share of requests", fontsize=10)
    caption(drawn, title, text)
    return drawn


def _distribution(axes: Axes, run: PolicyRun, line: str, dash: object, width: float, label: str) -> None:
    seconds = np.sort(run.e2el_s)
    share = np.arange(1, len(seconds) + 1) / len(seconds)
    median = f", median {np.median(seconds):.1f} s" if line != "#BBBBBB" else ""
    axes.step(seconds, share, where="post", color=line, linestyle=dash, linewidth=width, label=label + median)


def occupancy_figure(runs: Sequence[PolicyRun], *, title: str, text: str) -> Figure:
    """Rows of decodes and of idle seats, iteration by iteration; prompts left out; one height for all panels."""
    by_label = _medians(runs)
    drawn, axes = figure(len(by_label), 1, figsize=(11, 1.5 * len(by_label) + 1.3), sharex=True)
    longest = max(run.steps.num_steps for run in by_label.values())
    for (label, run), of_axes in zip(by_label.items(), axes[:, 0], strict=True):
        stretches = run.steps.occupancy
        edges = [stretch.first_step for stretch in stretches] + [run.steps.num_steps]
        bottom = np.zeros(len(stretches))
        for kind in ("decode", "idle"):
            rows = np.array([getattr(stretch, kind) for stretch in stretches])
            of_axes.stairs(bottom + rows, edges, baseline=bottom, fill=True, color=KIND_COLOURS[kind])
            bottom += rows
        steps = run.steps
        of_axes.set_title(
            f"{label}: {steps.mean_running:.1f} requests run at once, {run.summary.duration_s:,.0f} s, "
            f"{steps.discarded_share:.0%} of these rows discarded", fontsize=11,
        )  # fmt: skip
        of_axes.set(xlim=(0, longest), ylabel="rows")
    top = max(of_axes.get_ylim()[1] for of_axes in axes[:, 0])
    for of_axes in axes[:, 0]:
        of_axes.set_ylim(0, top)
    axes[-1, 0].set_xlabel("iteration")
    axes[-1, 0].xaxis.set_major_formatter("{x:,.0f}")
    caption(drawn, title, text)
    return drawn


def waste_figure(runs: Sequence[PolicyRun], *, title: str, text: str) -> Figure:
    """The KV pool over the run's time: in use by tokens of live requests, held without one, free."""
    by_label = _medians(runs)
    labels = sorted(by_label, key=lambda label: -by_label[label].steps.kv_waste)
    drawn, axes = figure(1, 1, figsize=(12, 0.36 * len(labels) + 2))
    of_axes = axes[0, 0]
    for place, label in enumerate(labels):
        steps, shade = by_label[label].steps, _shade(by_label[label])
        filled, wasted = steps.kv_usage * (1 - steps.kv_waste), steps.kv_usage * steps.kv_waste
        of_axes.barh(place, filled, color=shade, height=0.74)
        of_axes.barh(place, wasted, left=filled, color="white", edgecolor=GREY, hatch="////", linewidth=0, height=0.74)
        blocks = "token by token" if steps.block_size == 1 else f"in blocks of {steps.block_size}"
        told = f"{steps.kv_waste:.0%} wasted; holds {reservation(by_label[label].case)}, {blocks}"
        of_axes.text(1.015, place, told, va="center", fontsize=9.5)
    of_axes.set_yticks(range(len(labels)), labels, fontsize=10)
    of_axes.set(xlim=(0, 1), ylim=(len(labels) - 0.4, -0.6), xlabel="share of the KV pool, mean over the run")
    of_axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    of_axes.tick_params(axis="y", length=0)
    caption(drawn, title, text)
    return drawn

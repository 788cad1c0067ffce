"""The tables of a comparison, as Markdown: goals and ratios first, then what each system did by itself."""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from bench.metrics import Distribution
from bench.peers.findings import Comparison
from bench.peers.goals import MEMORY_FLOOR, Pair, cut
from bench.peers.lineup import SYSTEMS
from bench.systems import Measurement

_REASON_LENGTH = 90
_NOTHING = "–"


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table, its columns padded so that it reads as text too."""
    cells = [[cell.replace("|", "\\|") for cell in row] for row in [columns, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    lines = ["| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in cells]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def report(found: Comparison) -> str:
    """All tables, each under its heading."""
    parts = [
        ("Goals", goal_table(found)),
        ("Ratios of output tokens/s: ours over the peer's, median (repeats)", ratio_table(found)),
        ("Output tokens/s, median (repeats)", speed_table(found)),
        ("Latency p50 in ms, median of the repeats: TTFT / TPOT", latency_table(found)),
        ("Systems", system_table(found)),
    ]
    if found.others:
        parts.append(("Our servers on other workloads, once", other_table(found)))
    if failures := [(system, reason) for system in found.systems if (reason := found.failure(system))]:
        parts.append(("Failures", markdown(["system", "reason"], failures)))
    return "\n\n".join(f"## {heading}\n\n{table}" for heading, table in parts)


def goal_table(found: Comparison) -> str:
    goals, ratios = found.goals, found.ratios
    rows = [
        [
            SYSTEMS[pair.system].label, _against(pair), pair.workload, f"≥ {goal.bound:g}x",
            _ratios(ratios.get(pair, ())), goal.verdict,
        ]
        for pair, goal in goals.items()
    ]  # fmt: skip
    num_measured = sum(goal.value is not None for goal in goals.values())
    summary = f"{sum(goal.is_reached for goal in goals.values())} of {num_measured} measured goals reached"
    return markdown(["ours", "against", "workload", "goal", "ratio", ""], rows) + f"\n\n{summary}"


def _against(pair: Pair) -> str:
    return "weights of a step / memory bandwidth" if pair.against == MEMORY_FLOOR else SYSTEMS[pair.against].label


def _ratios(of_repeats: Sequence[float]) -> str:
    if not of_repeats:
        return _NOTHING
    return f"{cut(statistics.median(of_repeats))}x ({', '.join(cut(ratio) for ratio in of_repeats)})"


def ratio_table(found: Comparison) -> str:
    """A row a peer, in its own process or ours, and a workload; a column each of ours over HTTP."""
    servers = found.entries(lambda entry: entry.is_server) or found.entries(lambda entry: entry.is_ours)
    ratios = found.ratios
    rows = [
        [
            SYSTEMS[peer].label, label,
            *(_ratios(ratios.get(Pair(server, peer, label), ())) for server in servers),
        ]
        for peer in found.systems
        if peer not in servers
        for label in found.labels
    ]  # fmt: skip
    return markdown(["against", "workload", *(SYSTEMS[server].label for server in servers)], rows)


def speed_table(found: Comparison) -> str:
    def cell(runs: Sequence[Measurement]) -> str:
        speeds = [run.summary.output_tokens_per_s for run in runs]
        return f"{statistics.median(speeds):.1f} ({', '.join(f'{speed:.1f}' for speed in speeds)})"

    return _by_workload(found, cell)


def latency_table(found: Comparison) -> str:
    def cell(runs: Sequence[Measurement]) -> str:
        return f"{_p50([r.summary.ttft_ms for r in runs])} / {_p50([r.summary.tpot_ms for r in runs])}"

    return _by_workload(found, cell)


def _by_workload(found: Comparison, cell: Callable[[Sequence[Measurement]], str]) -> str:
    """A row a system, a column a workload. Only runs without a failed request count; else the reason is shown."""
    rows = []
    for system in found.systems:
        reason = found.failure(system)
        row = [SYSTEMS[system].label]
        for label in found.labels:
            runs = [run for run in found.of(system, label) if not run.summary.num_failed]
            row.append(cell(runs) if runs else f"failed: {reason[:_REASON_LENGTH]}" if reason else _NOTHING)
        rows.append(row)
    return markdown(["system", *found.labels], rows)


def _p50(latencies: Sequence[Distribution | None]) -> str:
    values = [latency.p50 for latency in latencies if latency is not None]
    return f"{statistics.median(values):.0f}" if values else _NOTHING


def system_table(found: Comparison) -> str:
    rows = []
    for system in found.systems:
        said = found.descriptions.get(system, {})
        startup_s, peak = found.startup_s(system), found.peak_pss_bytes(system)
        versions = ", ".join(f"{name} {version}" for name, version in said.get("versions", {}).items())
        rows.append([
            SYSTEMS[system].label,
            _NOTHING if startup_s is None else f"{startup_s:.1f}",
            _NOTHING if peak is None else f"{peak / 2**30:.2f}",
            str(said.get("dtype", _NOTHING)),
            _more(said),
            versions or _NOTHING,
            (found.failure(system) or "")[:_REASON_LENGTH],
        ])
    columns = ["system", "start-up s", "peak PSS GiB", "weights", "settings", "versions", "failed"]
    return markdown(columns, rows)


def _more(said: Any) -> str:
    names = ("num_threads", "num_slots", "batch_size", "batch_tokens", "max_num_seqs", "kv_tokens", "kv_gib")
    return ", ".join(f"{name} {said[name]}" for name in names if name in said) or _NOTHING


def other_table(found: Comparison) -> str:
    rows = []
    for system in found.entries(lambda entry: entry.is_server):
        for label in found.others:
            for run in found.of(system, label):
                s = run.summary
                speed = f"{s.output_tokens_per_s:.1f}"
                failed = str(s.num_failed)
                rows.append([SYSTEMS[system].label, label, speed, _p50([s.ttft_ms]), _p50([s.tpot_ms]), failed])
    return markdown(["system", "workload", "output tokens/s", "TTFT p50 ms", "TPOT p50 ms", "failed"], rows)

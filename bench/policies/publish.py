"""A sweep's folder under bench/results: JSON, pictures, and one page with all of it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.html.page import Section, Table, page
from bench.metrics import Distribution
from bench.plots.slots import slots_figure
from bench.plots.style import save
from bench.plots.sweep import (
    latency_figure,
    occupancy_figure,
    ratio_figure,
    split_figure,
    throughput_figure,
    waste_figure,
)
from bench.policies.findings import REPORTED_CAP, Split, at_cap
from bench.policies.picture import NUM_REQUESTS, POOL_TOKENS
from bench.policies.runs import PolicyRun
from bench.result_file import RESULTS, stamped
from bench.step_trace import StepTrace

SCHEMA = "conveyor-policies/1"
_PICTURED = ("static", "packed_static", "orca", "tgi", "vllm_v0", "chunked")
_IN_OCCUPANCY = ("static", "packed_static", "orca (max_model_len)", "orca", "tgi", "vllm_v0", "chunked")


@dataclass(frozen=True, slots=True)
class Sweep:
    """What was run, and what it says."""

    title: str
    setting: str                           # one line: model, device, workload
    latency_setting: str                   # the same of the latency study
    description: Mapping[str, Any]         # of the target
    runs: tuple[PolicyRun, ...]
    splits: tuple[Split, ...]
    sentences: tuple[str, ...]
    traces: Mapping[str, StepTrace]

    @property
    def largest_cap(self) -> int:
        return max((run.cap for run in self.of("burst")), default=0)

    def of(self, workload: str) -> list[PolicyRun]:
        return [run for run in self.runs if run.workload == workload]


def new_folder(name: str, *, results: Path = RESULTS) -> Path:
    """Where a sweep that begins now will go; not made yet. Raises FileExistsError rather than mix two sweeps."""
    folder = results / f"{datetime.now(UTC):%Y-%m-%d}-{name}"
    if folder.exists():
        raise FileExistsError(f"{folder} exists: give this sweep another --name")
    return folder


def publish(sweep: Sweep, where: Path) -> None:
    """Writes everything to the folder `where`, which it makes."""
    stamp = stamped(SCHEMA)
    where.mkdir(parents=True)
    document = stamp | {
        "title": sweep.title,
        "setting": sweep.setting,
        "latency_setting": sweep.latency_setting,
        "target": dict(sweep.description),
        "sentences": sweep.sentences,
        "splits": [_split_json(split) for split in sweep.splits],
        "runs": [
            run.to_json(
                latencies=run.workload != "burst", occupancy=run.workload == "burst" and run.cap == sweep.largest_cap
            )
            for run in sweep.runs
        ],
    }
    (where / "results.json").write_text(json.dumps(document) + "\n", encoding="utf-8")
    pictures = draw(sweep, where)
    machine = stamp["machine"]
    lead = f"{sweep.setting}. {machine['cpu']}, {machine['cores']} cores; commit {stamp['commit']}."
    html = page(sweep.title, lead, stamp["command"], _sections(sweep, pictures), sweep.traces)
    (where / "index.html").write_text(html, encoding="utf-8")


def draw(sweep: Sweep, where: Path) -> dict[str, Path]:
    """Every picture that the sweep has the runs for: title -> file."""
    burst, poisson = sweep.of("burst"), sweep.of("poisson")
    found: dict[str, Path] = {}

    def add(title: str, name: str, drawn: Any) -> None:
        found[title] = save(drawn, where / f"{name}.png")

    if burst:
        title = "Throughput by cap and policy"
        text = f"{sweep.setting}; the darker part of a bar is output tokens"
        add(title, "throughput", throughput_figure(burst, title=title, text=text))
        short = [run for run in burst if run.case.label in _PICTURED]
        if len({run.case.label for run in short}) > 1:
            title = "Throughput by cap: six ways to batch, one engine"
            add(title, "throughput_short", throughput_figure(short, title=title, text=text))
        title = "Times static: one engine, equal kernels, policies only"
        add(title, "ratio_to_static", ratio_figure(burst, title=title, text=sweep.setting))
    if sweep.splits:
        title = f"Policy and implementation apart, at cap {REPORTED_CAP}"
        text = "Filled: like for like. Hatched: against the eager baseline of 81 tokens/s. Diamond: reported in 2023."
        add(title, "policy_and_implementation", split_figure(sweep.splits, title=title, text=text))
    if poisson:
        title = "Latency: from arrival to the last token"
        add(title, "latency", latency_figure(poisson, title=title, text=sweep.latency_setting))
    if burst:
        cap = sweep.largest_cap
        at = at_cap(burst, cap)
        title = f"Batch occupancy over iterations, cap {cap}"
        shown = [at[label] for label in _IN_OCCUPANCY if label in at] or list(at.values())[:6]
        text = "Rows of an iteration, prompts left out: decodes (blue), rows of finished members (grey)"
        add(title, "occupancy", occupancy_figure(shown, title=title, text=text))
        title = f"KV cache held and KV cache used, cap {cap}"
        text = "Filled: tokens of live requests. Hatched: held by a request, with no such token in it."
        add(title, "kv_waste", waste_figure(list(at.values()), title=title, text=text))
    if sweep.traces:
        text = f"{NUM_REQUESTS} requests at once, a KV pool of {POOL_TOKENS} tokens; real engine, small random model"
        shown_traces = [(name, sweep.traces[name]) for name in _PICTURED if name in sweep.traces]
        title = "Slots by iterations"
        add(title, "slots", slots_figure(shown_traces or list(sweep.traces.items()), title=title, text=text))
    return found


def _sections(sweep: Sweep, pictures: Mapping[str, Path]) -> list[Section]:
    sections = [Section("What it says", sweep.sentences)] if sweep.sentences else []
    sections += [Section(title, picture=picture) for title, picture in pictures.items()]
    if burst := sweep.of("burst"):
        sections.append(Section("Throughput", table=throughput_table(burst)))
    if poisson := sweep.of("poisson"):
        sections.append(Section("Latencies", table=latency_table(poisson)))
    return sections


def throughput_text(runs: Sequence[PolicyRun]) -> str:
    """The table for a terminal: per cap tokens/s, in brackets output tokens/s, and times static."""
    table = throughput_table(runs)
    caps = sorted({run.cap for run in runs})
    lines = [f"{'policy':<34}" + "".join(f"{f'cap {cap}':>34}" for cap in caps), "tokens/s (output tokens/s) ×static"]
    for row in table.rows:
        cells = [f"{row[i]} ({row[i + 1]}) {row[i + 2]}×" for i in range(1, len(row), 5)]
        lines.append(f"{row[0]:<34}" + "".join(f"{cell:>34}" for cell in cells))
    return "\n".join(lines)


def throughput_table(runs: Sequence[PolicyRun]) -> Table:
    """Per label and cap: tokens/s in all, output tokens/s, times static; with several repeats, all of them."""
    caps = sorted({run.cap for run in runs})
    labels = list(dict.fromkeys(run.case.label for run in runs))
    columns = ["policy"]
    for cap in caps:
        columns += [f"cap {cap}: tokens/s", "output tokens/s", "times static", "running", "preemptions"]
    rows = []
    for label in labels:
        row = [label]
        for cap in caps:
            same = [run for run in runs if run.case.label == label and run.cap == cap]
            static = {run.repeat: run for run in runs if run.case.label == "static" and run.cap == cap}
            row += [
                _all(same, lambda run: f"{run.summary.total_tokens_per_s:,.1f}"),
                _all(same, lambda run: f"{run.summary.output_tokens_per_s:,.1f}"),
                _all(same, lambda run, static=static: _ratio(run, static.get(run.repeat))),
                _all(same[:1], lambda run: f"{run.steps.mean_running:.1f}"),
                _all(same[:1], lambda run: str(run.steps.num_preemptions)),
            ]
        rows.append(row)
    return Table(columns, rows)


def _all(runs: Sequence[PolicyRun], cell: Any) -> str:
    return ", ".join(cell(run) for run in runs) or "–"


def _ratio(run: PolicyRun, static: PolicyRun | None) -> str:
    return f"{run.summary.total_tokens_per_s / static.summary.total_tokens_per_s:.2f}" if static else "–"


def latency_table(runs: Sequence[PolicyRun]) -> Table:
    latencies = ("TTFT p50 s", "TTFT p99 s", "E2EL p50 s", "E2EL p99 s", "TPOT p50 ms")
    columns = ["policy", "requests/s", *latencies, "tokens/s"]
    rows = [
        [
            run.case.label, f"{run.rate:g}", _seconds(run.summary.ttft_ms, "p50"), _seconds(run.summary.ttft_ms, "p99"),
            _seconds(run.summary.e2el_ms, "p50"), _seconds(run.summary.e2el_ms, "p99"),
            f"{run.summary.tpot_ms.p50:.1f}" if run.summary.tpot_ms else "–", f"{run.summary.total_tokens_per_s:,.1f}",
        ]
        for run in runs
    ]  # fmt: skip
    return Table(columns, rows)


def _seconds(latency: Distribution | None, which: str) -> str:
    return f"{getattr(latency, which) / 1000:.2f}" if latency else "–"


def _split_json(split: Split) -> dict[str, Any]:
    return {
        "policy": split.policy, "system": split.system, "like_for_like": split.like_for_like,
        "with_factor": split.with_factor, "reported": split.reported, "implementation": split.implementation,
    }  # fmt: skip

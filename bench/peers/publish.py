"""A comparison's folder under bench/results: JSON, tables as Markdown, one picture; written again after each repeat."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.metrics import Objective
from bench.peers.findings import Comparison
from bench.peers.goals import Pair
from bench.peers.lineup import SYSTEMS
from bench.peers.tables import report
from bench.peers.turns import Failure
from bench.plots.peers import comparison_figure
from bench.plots.style import save
from bench.report import measurement_json

SCHEMA = "conveyor-peers/2"


def publish(found: Comparison, objective: Objective, stamp: Mapping[str, Any], where: Path) -> str:
    """Writes everything to the folder `where`; returns the tables. `stamp` is of the run's beginning."""
    where.mkdir(parents=True, exist_ok=True)
    text = report(found)
    machine = stamp["machine"]
    lead = f"{machine['cpu']}, {machine['cores']} cores; commit {stamp['commit']}; {stamp['created']}."
    head = f"# {_title(found)}\n\n{lead}\n\n```sh\n{stamp['command']}\n```\n\n![Ratios](peers.png)\n\n"
    (where / "tables.md").write_text(head + text + "\n", encoding="utf-8")
    unfinished = where / "results.json.part"
    unfinished.write_text(json.dumps(document(found, objective, stamp)) + "\n", encoding="utf-8")
    unfinished.rename(where / "results.json")
    picture = comparison_figure(panels(found), base=_base_label(found), title=_title(found), text=_text(found, machine))
    save(picture, where / "peers.png")
    return text


def document(found: Comparison, objective: Objective, stamp: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that a figure needs to be published or checked, ready for JSON."""
    failures = [outcome for outcome in found.outcomes if isinstance(outcome, Failure)]
    ratios = found.ratios
    return {
        **stamp,
        "model": found.model,
        "setting": found.setting,
        "seed": found.seed,
        "objective": asdict(objective),
        "systems": {
            system: {
                "label": SYSTEMS[system].label,
                "description": dict(found.descriptions.get(system, {})),
                "startup_s": list(found.startups_s.get(system, ())),
                "peak_pss_bytes": found.peak_pss_bytes(system),
                "failure": found.failure(system),
            }
            for system in found.systems
        },
        "goals": [
            {**pair._asdict(), "of_repeats": ratios.get(pair, ()), **goal.to_json()}
            for pair, goal in found.goals.items()
        ],
        "ratios": [{**pair._asdict(), "of_repeats": of_repeats} for pair, of_repeats in ratios.items()],
        "failures": [{**asdict(failure.turn), "reason": failure.reason} for failure in failures],
        "measurements": [measurement_json(measurement) for measurement in found.measurements],
    }


def panels(found: Comparison) -> dict[str, dict[str, Any]]:
    """label of a workload -> label of a system -> its bar: ratios to the base, or why there are none."""
    base = base_of(found)
    ratios = found.ratios
    bars: dict[str, dict[str, Any]] = {}
    for label in found.labels:
        num_base = len(found.of(base, label)) if base else 0
        bars[label] = {
            SYSTEMS[system].label: {
                "ratios": (1.0,) * num_base if system == base else ratios.get(Pair(system, base or "", label), ()),
                "colour": SYSTEMS[system].colour,
                "failure": found.failure(system),
            }
            for system in found.systems
        }
    return bars


def base_of(found: Comparison) -> str | None:
    """What the picture's ratios are to: padded static batches if they ran, else a peer, else the first system."""
    peers = ["transformers_static", *found.entries(lambda entry: not entry.is_ours), *found.systems]
    ran = {m.system for m in found.measurements if not m.summary.num_failed}
    return next((system for system in peers if system in ran), None)


def _title(found: Comparison) -> str:
    return f"{found.model} on this machine's processor: ours and peers"


def _text(found: Comparison, machine: Mapping[str, Any]) -> str:
    times = f"times those of {_base_label(found)}"
    return f"Output tokens/s, {times}: median of the repeats, and each. {machine['cpu']}, {machine['cores']} cores."


def _base_label(found: Comparison) -> str:
    base = base_of(found)
    return SYSTEMS[base].label if base else "nothing: no system gave a figure"

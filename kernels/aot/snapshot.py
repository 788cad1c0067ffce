"""The committed figures: what a later run is compared with, and what docs/kernels.md shows.

One line a launch, so that a change of a kernel reads as a diff of its costs.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kernels.aot.figures import Figures

PATH = Path(__file__).with_name("snapshot.json")
DOCS = Path(__file__).parents[2] / "docs" / "kernels.md"
BEGIN, END = "<!-- compiled figures: python -m kernels.aot --docs -->", "<!-- end of compiled figures -->"
MAX_GROWTH = 1.10
WATCHED = ("registers", "shared_bytes", "instructions", "loop_instructions")


@dataclass(frozen=True, slots=True)
class Snapshot:
    triton: str  # the version that compiled it: figures of another say nothing about our changes
    figures: Mapping[str, Figures]  # launch name -> figures


def load(path: Path = PATH) -> Snapshot:
    raw = json.loads(path.read_text(encoding="utf-8"))
    return Snapshot(raw["triton"], {name: Figures(**figures) for name, figures in raw["figures"].items()})


def save(snapshot: Snapshot, path: Path = PATH) -> None:
    lines = [f"  {json.dumps(n, ensure_ascii=False)}: {json.dumps(asdict(f))}" for n, f in snapshot.figures.items()]
    body = ",\n".join(sorted(lines))
    path.write_text(f'{{"triton": "{snapshot.triton}", "figures": {{\n{body}\n}}}}\n', encoding="utf-8")


def drift(before: Figures, now: Figures) -> list[str]:
    """Figures that grew by more than a tenth."""
    pairs = [(name, getattr(before, name), getattr(now, name)) for name in WATCHED]
    return [f"drift: {name} {old} -> {new}" for name, old, new in pairs if new > old * MAX_GROWTH]


def differences(snapshot: Snapshot, now: Mapping[str, Figures], whole: bool) -> list[str]:
    """What a run found otherwise than the snapshot has it; `whole`: the run was to compile all of it."""
    known = snapshot.figures
    found = [f"{name}: not in the snapshot; see --update" for name in now if name not in known]
    if whole:
        found += [f"{name}: no longer compiled; see --update" for name in known if name not in now]
    return found + [f"{name}: {growth}" for name in now if name in known for growth in drift(known[name], now[name])]


def table(snapshot: Snapshot) -> str:
    """Markdown: attention on sm_90, a line a model; then every kernel by architecture, at its most expensive."""
    attention: list[tuple[object, ...]] = []
    groups: dict[tuple[str, str], list[Figures]] = {}
    for name, figures in sorted(snapshot.figures.items()):
        arch, model, kernel = name.split(" · ")
        kind = kernel.split()[0]
        groups.setdefault((kind, arch), []).append(figures)
        if arch == "sm_90" and kind in ("extend", "varlen", "decode"):
            attention.append(_attention_cells(kind, model, figures))
    header = ("kernel on sm_90", "model", "registers", "shared, KiB", "matrix", "programs per SM", "loop, instructions",
              "per KV token-head", "issue / MMA")  # fmt: skip
    summary = [
        (kind, arch, len(group), max(f.registers for f in group), _kib(max(f.shared_bytes for f in group)),
         sum(bool(f.stack_bytes or f.spills) for f in group) or "none")
        for (kind, arch), group in sorted(groups.items())
    ]  # fmt: skip
    most = ("kernel", "architecture", "launches", "registers, at most", "shared, KiB, at most", "spills")
    attention.sort(key=lambda cells: str(cells[0]))
    return f"{_markdown(header, attention)}\n\n{_markdown(most, summary)}"


def _attention_cells(kind: str, model: str, figures: Figures) -> tuple[object, ...]:
    matrix = " ".join(f"{count} {name}" for name, count in figures.matrix.items())
    return (kind, model, figures.registers, _kib(figures.shared_bytes), matrix or "–", figures.blocks,
            figures.loop_instructions or "–", figures.per_token_head or "–", figures.issue_over_mma or "–")  # fmt: skip


def _kib(size: int) -> str:
    return f"{size / 1024:.0f}"


def _markdown(header: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def documented(text: str, snapshot: Snapshot) -> str:
    """`text` with the table between its markers replaced by the snapshot's."""
    head, _, rest = text.partition(BEGIN)
    _, marker, tail = rest.partition(END)
    if not marker:
        raise ValueError(f"the text has no '{BEGIN}' … '{END}'")
    return f"{head}{BEGIN}\n\n{table(snapshot)}\n\n{END}{tail}"

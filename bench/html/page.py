"""The page: sections in order, put together with what is beside this file."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from bench.step_trace import StepTrace, slots_of

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as text; the first column names the row."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    def html(self) -> str:
        head = "".join(f"<th>{escape(column)}</th>" for column in self.columns)
        rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in self.rows)
        return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it, any of: sentences, a table, a picture."""

    title: str
    text: Sequence[str] = ()
    table: Table | None = None
    picture: Path | None = None

    def html(self) -> str:
        parts = [f"<h2>{escape(self.title)}</h2>"]
        if len(self.text) == 1:
            parts.append(f"<p>{escape(self.text[0])}</p>")
        elif self.text:
            parts.append(f"<ul>{''.join(f'<li>{escape(sentence)}</li>' for sentence in self.text)}</ul>")
        if self.table is not None:
            parts.append(self.table.html())
        if self.picture is not None:
            data = base64.b64encode(self.picture.read_bytes()).decode()
            parts.append(f'<p><img alt="{escape(self.title)}" src="data:image/png;base64,{data}"></p>')
        return "\n".join(parts)


def page(
    title: str, lead: str, command: str, sections: Sequence[Section], traces: Mapping[str, StepTrace]
) -> str:
    """A whole HTML document. Without `traces` it has no slider."""
    body = [f"<h1>{escape(title)}</h1>", f'<p class="lead">{escape(lead)}</p>', f"<pre>{escape(command)}</pre>"]
    body += [section.html() for section in sections]
    if traces:
        body.append(_slider(traces))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{(_HERE / 'page.css').read_text()}</style></head>\n"
        f"<body>{''.join(body)}</body></html>\n"
    )


def _slider(traces: Mapping[str, StepTrace]) -> str:
    data = json.dumps([_trace_json(name, trace) for name, trace in traces.items()], separators=(",", ":"))
    data = data.replace("</", r"<\/")                           # or a request's id could end the script
    return (
        "<h2>Iteration by iteration</h2><p>A recorded run of each policy. Dark: prefill; light: decode; hatched: rows "
        "computed and discarded; numbers at the right: who is in the batch.</p>"
        '<div class="slider" id="slider"><label>policy <select></select></label>'
        '<label>iteration <input type="range" min="0" value="0"></label><button>play</button>'
        '<canvas></canvas><div class="now"></div></div>'
        f"<script>const TRACES = {data};\n{(_HERE / 'slider.js').read_text()}</script>"
    )


def _trace_json(name: str, trace: StepTrace) -> dict[str, object]:
    slots, seats = slots_of(trace)
    steps = [
        {
            "begun": round(step.begun_s, 6), "ended": round(step.ended_s, 6), "preempted": step.preempted,
            "rows": [
                [row.request_id, seats[i][row.request_id], row.kind, row.start, row.tokens, row.blocks,
                 row.padding + (row.tokens if row.kind == "dropped" else 0)]
                for row in step.rows
            ],
        }
        for i, step in enumerate(trace.steps)
    ]  # fmt: skip
    return {"name": name, "slots": slots, "steps": steps}

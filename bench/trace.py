"""Recorded traces: arrival, prompt length and output length of each request, under any of the known column names.

Files are JSONL (one object a line) or CSV. Known columns:

own         t (seconds)                prompt_len     output_len
Azure       TIMESTAMP (date and time)  ContextTokens  GeneratedTokens
Mooncake    timestamp (milliseconds)   input_length   output_length     hash_ids (one for each 512 prompt tokens)
engine      arrival_s                  prompt         output            the ends in a trace of an engine's steps

A trace of steps is what `trace: path` in an engine's configuration writes (engine/trace.py). Of it the requests that
ended by themselves are read; those that were aborted or failed say nothing of how long they would have been.
"""

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One recorded request; prompts that share leading block hashes share those tokens."""

    BLOCK_LEN: ClassVar[int] = 512
    arrival_s: float                               # since the trace's first request
    prompt_len: int
    output_len: int
    block_hashes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Columns:
    time: str
    prompt_len: str
    output_len: str
    seconds: Callable[[Any], float]


def _date_seconds(text: Any) -> float:
    date = datetime.fromisoformat(text)
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


_KNOWN_COLUMNS = (
    _Columns("t", "prompt_len", "output_len", float),
    _Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens", _date_seconds),
    _Columns("timestamp", "input_length", "output_length", lambda milliseconds: float(milliseconds) / 1000),
    _Columns("arrival_s", "prompt", "output", float),
)


def read_trace(path: Path) -> list[TraceRow]:
    """The rows of a trace in order of arrival, the first at 0 s."""
    rows = sorted((_parse(row, f"{path}:{line}") for line, row in _rows(path)), key=lambda row: row.arrival_s)
    if not rows:
        raise ValueError(f"{path} holds no requests")
    start_s = rows[0].arrival_s
    return [TraceRow(row.arrival_s - start_s, row.prompt_len, row.output_len, row.block_hashes) for row in rows]


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    with path.open(newline="", encoding="utf-8") as file:
        if path.suffix == ".csv":
            yield from enumerate(csv.DictReader(file), start=2)
        else:
            rows = ((line, json.loads(text)) for line, text in enumerate(file, start=1) if text.strip())
            yield from ((line, row) for line, row in rows if _is_request(row))


def _is_request(row: Mapping[str, Any]) -> bool:
    """Whether the row of a JSONL file tells of one request, as all do but some of an engine's trace."""
    if "finish" in row:
        return row["reason"] in ("stop", "length")
    return "trace" not in row and "step" not in row


def _parse(row: Mapping[str, Any], where: str) -> TraceRow:
    for columns in _KNOWN_COLUMNS:
        if columns.time in row and columns.prompt_len in row and columns.output_len in row:
            lengths = int(row[columns.prompt_len]), int(row[columns.output_len])
            if min(lengths) < 1:
                raise ValueError(f"{where}: lengths are {lengths[0]} and {lengths[1]}; both must be at least 1")
            return TraceRow(columns.seconds(row[columns.time]), *lengths, tuple(row.get("hash_ids", ())))
    known = "; ".join(f"{c.time}, {c.prompt_len}, {c.output_len}" for c in _KNOWN_COLUMNS)
    raise ValueError(f"{where}: columns are {', '.join(row)}; known are: {known}")

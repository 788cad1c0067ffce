"""The JSON files that benchmarks leave: each says where, when and with what it was measured."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.environment import environment

RESULTS = Path(__file__).resolve().parent / "results"


def stamped(schema: str) -> dict[str, Any]:
    """The head of every result document."""
    return {"schema": schema, "created": datetime.now(UTC).isoformat(timespec="seconds"), **environment()}


def write_result(document: Mapping[str, Any], what: str, *, folder: Path = RESULTS) -> Path:
    """Write a stamped document under a name that says when and what; returns the path."""
    when = document["created"].replace(":", "").replace("+0000", "Z")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{when}-{what}.json"
    path.write_text(json.dumps(document) + "\n", encoding="utf-8")
    return path

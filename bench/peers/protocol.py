"""How a peer's process talks to the benchmark: one JSON object a line, workloads in on stdin, records out on stdout.

peer → bench    {"ready": {…description…}}   {"record": {…}} after a request   {"done": {…figures…}} after a run
bench → peer    a workload, as `Workload.to_json` gives it; end of input ends the peer

This module and what it imports run in the peer's own environment: the standard library and NumPy only.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from bench.metrics import RequestRecord
from bench.workloads import Workload

# Runs the workload, hands each record on, and returns what it has to say of itself: fields of `ServerFigures`, or None.
RunWorkload = Callable[[Workload, Callable[[RequestRecord], None]], Mapping[str, Any] | None]


def take_stdout() -> TextIO:
    """The real standard output; from now on all that libraries print goes to standard error instead."""
    real = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return real


def serve_workloads(out: TextIO, description: Mapping[str, Any], run: RunWorkload) -> None:
    """Announce the peer as ready, then run workloads until the input ends."""

    def send(message: Mapping[str, Any]) -> None:
        print(json.dumps(message), file=out, flush=True)

    send({"ready": dict(description)})
    for line in sys.stdin:
        figures = run(Workload.from_json(json.loads(line)), lambda record: send({"record": record.to_json()}))
        send({"done": dict(figures or {})})

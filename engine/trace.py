"""TraceWriter: a JSONL file of what every step computed, as pictures and simulations read it. Holds no text, no token.

    {"trace": "conveyor-trace/1", "model": "opt-13b", "policy": "orca", "block_size": 16, "num_blocks": 731, …}
    {"step": 0, "begun_s": 0.0, "ended_s": 0.0312, "requests": [
        {"id": "a", "kind": "prefill", "start": 0, "tokens": 64, "blocks": 5, "sampled": true},
        {"id": "b", "kind": "decode", "start": 97, "tokens": 1, "blocks": 9, "sampled": true},
        {"id": "c", "kind": "prefill", "start": 0, "tokens": 40, "blocks": 5, "padding": 24},
        {"id": "d", "kind": "seat", "start": 71, "tokens": 0, "blocks": 9, "padding": 1}], "preempted": ["e"]}
    {"finish": "a", "s": 0.0312, "arrival_s": 0.0, "reason": "length", "prompt": 64, "output": 1, "preemptions": 0}

A step's requests are in batch order. `start` counts the tokens that were in the cache before the step, `tokens` those
that it computed, `padding` rows computed and discarded, `blocks` the KV blocks held. Kinds: `prefill` computes tokens
that were known before (recomputed ones after a preemption too), `decode` the token sampled last, `padding` rows only,
for a request that has not finished, `seat` rows only, for one that has; `dropped` is a token computed for a request
that ended while the step ran. Times are the engine's clock.
"""

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, TextIO

from engine.errors import ConfigError
from engine.request import Request
from engine.scheduling.plan import StepPlan

log = logging.getLogger(__name__)

SCHEMA = "conveyor-trace/1"
MAX_BYTES = 4 * 2**30             # a trace ends here, so that one forgotten in service does not fill the disk
_BUFFER_BYTES = 2**18
_FLUSH_S = 1.0                    # a reader of a running engine's trace is at most this far behind while it steps


class TraceWriter:
    """Observes an engine's steps and writes them down. A disk that fails ends the trace, never the engine."""

    def __init__(self, file: TextIO, header: Mapping[str, Any], *, max_bytes: int = MAX_BYTES) -> None:
        self._file: TextIO | None = file
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._num_steps = 0
        self._flushed_s = 0.0
        self._num_prompt_tokens: dict[str, int] = {}           # of live requests
        self._write({"trace": SCHEMA, **header})

    @classmethod
    def open(cls, path: Path, header: Mapping[str, Any]) -> "TraceWriter":
        """A trace in a new file: `path`, or where that exists (an earlier run, another replica) `path` with a number.

        Raises ConfigError if no file can be made there.
        """
        for number in count(1):
            numbered = path if number == 1 else path.with_stem(f"{path.stem}-{number}")
            try:
                file = numbered.open("x", encoding="utf-8", buffering=_BUFFER_BYTES)
            except FileExistsError:
                continue
            except OSError as error:
                raise ConfigError(f"trace: cannot write {numbered}: {error.strerror}") from None
            log.info("tracing steps to %s", numbered)
            return cls(file, header)
        raise AssertionError("count() does not end")

    def on_step(self, plan: StepPlan, sampled: Mapping[str, int], begun_s: float, ended_s: float) -> None:
        """Writes down one step that has been computed."""
        if self._file is None:
            return
        for request_id, (generation, _) in plan.new.items():
            self._num_prompt_tokens[request_id] = len(generation.prompt_token_ids)
        ids = dict.fromkeys((*plan.num_scheduled_tokens, *plan.padding))
        if not ids:
            return
        line: dict[str, Any] = {
            "step": self._num_steps,
            "begun_s": round(begun_s, 6),
            "ended_s": round(ended_s, 6),
            "requests": [self._row(plan, request_id, request_id in sampled) for request_id in ids],
        }
        if plan.preempted:
            line["preempted"] = plan.preempted
        self._num_steps += 1
        self._write(line)
        if ended_s - self._flushed_s >= _FLUSH_S:
            self._flushed_s = ended_s
            self._flush()

    def on_finish(self, request: Request, now_s: float) -> None:
        """Writes down how a request ended."""
        self._num_prompt_tokens.pop(request.request_id, None)
        self._write({
            "finish": request.request_id,
            "s": round(now_s, 6),
            "arrival_s": round(request.arrival_time_s, 6),
            "reason": request.finish_reason,
            "prompt": request.num_prompt_tokens,
            "output": request.num_output_tokens,
            "preemptions": request.num_preemptions,
        })

    def close(self) -> None:
        """Writes what is buffered; later calls do nothing."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                log.warning("the end of the trace is lost: %s", error)

    def _row(self, plan: StepPlan, request_id: str, has_sampled: bool) -> dict[str, Any]:
        num_tokens, start = plan.num_scheduled_tokens.get(request_id, 0), plan.start[request_id]
        row: dict[str, Any] = {
            "id": request_id,
            "kind": self._kind(request_id, num_tokens, start, has_sampled),
            "start": start,
            "tokens": num_tokens,
            "blocks": len(plan.block_tables[request_id]),
        }
        if request_id in plan.padding:
            row["padding"] = plan.padding[request_id]
        if has_sampled:
            row["sampled"] = True
        return row

    def _kind(self, request_id: str, num_tokens: int, start: int, has_sampled: bool) -> str:
        num_prompt_tokens = self._num_prompt_tokens.get(request_id)
        if num_prompt_tokens is None:
            return "seat" if num_tokens == 0 else "dropped"
        if num_tokens == 0:
            return "padding"
        return "decode" if num_tokens == 1 and has_sampled and start >= num_prompt_tokens else "prefill"

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._file is None:
            return
        text = json.dumps(line, separators=(",", ":")) + "\n"
        self._num_bytes += len(text)
        if self._num_bytes > self._max_bytes:
            self._stop(f"it has reached {self._max_bytes} bytes")
            return
        try:
            self._file.write(text)
        except OSError as error:
            self._stop(str(error))

    def _flush(self) -> None:
        try:
            if self._file is not None:
                self._file.flush()
        except OSError as error:
            self._stop(str(error))

    def _stop(self, why: str) -> None:
        log.warning("the trace ends here, the engine goes on: %s", why)
        file, self._file = self._file, None
        self._num_prompt_tokens.clear()
        if file is not None:
            with suppress(OSError):                            # it tries once more to write what it holds
                file.close()

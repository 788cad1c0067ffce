"""Streams as a client sees them."""

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.integration.conftest import PLAIN, Application


@dataclass
class Streamed:
    """A whole event stream."""

    chunks: list[dict[str, Any]] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)     # when each chunk came
    num_done: int = 0
    error: dict[str, Any] | None = None

    @property
    def choices(self) -> list[dict[str, Any]]:
        return [choice for chunk in self.chunks for choice in chunk["choices"]]

    def deltas(self, index: int = 0) -> list[str]:
        """Text pieces of a choice, of either endpoint."""
        own = [choice for choice in self.choices if choice["index"] == index]
        return [choice["delta"].get("content", "") if "delta" in choice else choice["text"] for choice in own]

    def text(self, index: int = 0) -> str:
        return "".join(self.deltas(index))

    def finish_reasons(self, index: int = 0) -> list[str]:
        return [c["finish_reason"] for c in self.choices if c["index"] == index and c["finish_reason"] is not None]


def stream(application: Application, path: str, body: dict[str, Any]) -> Streamed:
    with open_stream(application, path, body) as payloads:
        return gathered(payloads)


def gathered(payloads: Iterable[str]) -> Streamed:
    streamed = Streamed()
    for payload in payloads:
        assert streamed.num_done == 0, "[DONE] is not the last event"
        if payload == "[DONE]":
            streamed.num_done += 1
        elif "error" in (chunk := json.loads(payload)):
            streamed.error = chunk["error"]
        else:
            streamed.chunks.append(chunk)
            streamed.times_s.append(time.monotonic())
    return streamed


@contextmanager
def open_stream(application: Application, path: str, body: dict[str, Any]) -> Iterator[Iterator[str]]:
    """The payloads of a stream's events, for as long as the caller cares."""
    url = f"{application.url}{path}"
    with httpx.stream("POST", url, json=body | {"stream": True}, timeout=60, **PLAIN) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        yield _payloads(response)


def _payloads(response: httpx.Response) -> Iterator[str]:
    for line in response.iter_lines():
        if line and not line.startswith(":"):              # a comment keeps a silent stream alive
            assert line.startswith("data: ")
            yield line.removeprefix("data: ")

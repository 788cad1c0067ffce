"""What was found of one server, and the goals it is held against."""

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from bench.goals import Goal

_GB = 1e9


@dataclass(frozen=True, slots=True)
class Start:
    """One start of an empty Serve application and one of ours, in seconds since each one's process began."""

    empty_s: float                                 # until its first 200
    ready_s: float                                 # until ours said so
    first_token_s: float                           # of a request sent then

    @property
    def beyond_empty_s(self) -> float:
        return self.first_token_s - self.empty_s


@dataclass(frozen=True, slots=True)
class Memory:
    """After all requests. `kv_written_bytes` are those of blocks that hold something: others take no memory yet."""

    pss_bytes: int
    weights_bytes: int
    kv_bytes: int                                  # of the whole pool, as planned
    kv_written_bytes: int


@dataclass(frozen=True, slots=True)
class Costs:
    """One server."""

    dtype: str
    starts: tuple[Start, ...]
    memory: Memory
    missed_ttft_s: tuple[float, ...]               # of prompts that begin as no other did
    found_ttft_s: tuple[float, ...]                # of those that come after them, with the same prefix
    prefix_cache_hit_rate: float | None            # of both together: half of the prompts' tokens at best
    http_tokens_per_s: tuple[float, ...]           # one a workload
    in_process_tokens_per_s: tuple[float, ...]     # the same workloads, some before the server ran, some after

    @property
    def stream_ratios(self) -> tuple[float, ...]:
        pairs = zip(self.http_tokens_per_s, self.in_process_tokens_per_s, strict=True)
        return tuple(over_http / in_process for over_http, in_process in pairs)

    def goals(self) -> list[Goal]:
        memory = self.memory
        beside_pool = (memory.pss_bytes - memory.weights_bytes - memory.kv_bytes) / _GB
        beside_written = (memory.pss_bytes - memory.weights_bytes - memory.kv_written_bytes) / _GB
        ttft = statistics.median(self.missed_ttft_s) / statistics.median(self.found_ttft_s)
        start_s = statistics.median(start.beyond_empty_s for start in self.starts)
        return [
            Goal(f"{self.dtype}: start to first token beyond an empty Serve app", start_s, 8.0, "s"),
            Goal(f"{self.dtype}: PSS beyond weights and the KV pool", beside_pool, 1.7, "GB"),
            Goal(f"{self.dtype}: PSS beyond weights and the KV written so far", beside_written, 1.7, "GB"),
            Goal(f"{self.dtype}: TTFT without over with a cached prefix", ttft, 10.0, "x", at_least=True),
            Goal(
                f"{self.dtype}: streams over HTTP, of those in process", statistics.median(self.stream_ratios), 0.95,
                "x", at_least=True,
            ),
        ]  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"stream_ratios": self.stream_ratios, "goals": [goal.to_json() for goal in self.goals()]}

    def __str__(self) -> str:
        memory = self.memory
        sizes: Mapping[str, int] = {
            "PSS": memory.pss_bytes, "weights": memory.weights_bytes, "KV pool": memory.kv_bytes,
            "KV written": memory.kv_written_bytes,
        }  # fmt: skip
        rows = [
            ("empty app, first 200, s", [start.empty_s for start in self.starts]),
            ("ours, ready, s", [start.ready_s for start in self.starts]),
            ("ours, first token, s", [start.first_token_s for start in self.starts]),
            ("TTFT, prefix not cached, s", self.missed_ttft_s),
            ("TTFT, prefix cached, s", self.found_ttft_s),
            ("output tokens/s over HTTP", self.http_tokens_per_s),
            ("output tokens/s in process", self.in_process_tokens_per_s),
        ]
        lines = [f"{name:<30}" + ", ".join(f"{value:.3f}" for value in values) for name, values in rows]
        lines.insert(3, f"{'memory, GB':<30}" + ", ".join(f"{name} {size / _GB:.2f}" for name, size in sizes.items()))
        return "\n".join([f"dtype {self.dtype}", *lines])

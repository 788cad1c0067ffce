"""Metrics of one run, computed from what the client saw: when each request was due and when its output came."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """What the client saw of one request; times are seconds since the start of the run.

    A request counts as failed (`error` says why) unless it delivered exactly the output tokens it asked for.
    """

    index: int
    num_prompt_tokens: int
    num_output_tokens: int                       # delivered
    arrival_s: float                             # when it was due, however late the client was in sending it
    delivery_s: tuple[float, ...]                # when each piece of output came; a piece holds one or more tokens
    end_s: float
    error: str | None = None

    @property
    def ttft_s(self) -> float:
        return self.delivery_s[0] - self.arrival_s

    @property
    def e2el_s(self) -> float:
        return self.delivery_s[-1] - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token after the first; None for a single token, which has none after it."""
        if self.num_output_tokens < 2:
            return None
        return (self.delivery_s[-1] - self.delivery_s[0]) / (self.num_output_tokens - 1)

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between one delivery and the next."""
        return [later - earlier for earlier, later in pairwise(self.delivery_s)]

    def to_json(self) -> dict[str, Any]:
        values = asdict(self)
        values["delivery_s"] = [round(second, 4) for second in self.delivery_s]
        return values | {"arrival_s": round(self.arrival_s, 4), "end_s": round(self.end_s, 4)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "RequestRecord":
        return cls(**{**values, "delivery_s": tuple(values["delivery_s"])})


@dataclass(frozen=True, slots=True)
class Objective:
    """What a request must meet to count as good: a bound on TTFT and one on TPOT."""

    ttft_s: float
    tpot_s: float

    def is_met(self, record: RequestRecord) -> bool:
        return record.ttft_s <= self.ttft_s and (record.tpot_s or 0.0) <= self.tpot_s


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean and percentiles of one latency, in milliseconds."""

    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of_seconds(cls, seconds: Sequence[float]) -> "Distribution | None":
        if not seconds:
            return None
        milliseconds = np.asarray(seconds) * 1000
        return cls(float(milliseconds.mean()), *np.percentile(milliseconds, (50, 90, 99)).tolist())


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one run. Rates count complete requests only, over the time until the last one ended."""

    num_requests: int
    num_failed: int
    duration_s: float
    num_prompt_tokens: int
    num_output_tokens: int
    output_tokens_per_s: float
    total_tokens_per_s: float
    requests_per_s: float
    goodput_requests_per_s: float                # of requests that met the objective
    ttft_ms: Distribution | None
    itl_ms: Distribution | None
    tpot_ms: Distribution | None
    e2el_ms: Distribution | None


def summarize(records: Sequence[RequestRecord], objective: Objective) -> Summary:
    """The figures of a run from its records."""
    complete = [record for record in records if record.error is None]
    duration_s = max((record.end_s for record in records), default=0.0)
    num_prompt_tokens = sum(record.num_prompt_tokens for record in complete)
    num_output_tokens = sum(record.num_output_tokens for record in complete)

    def per_s(count: int) -> float:
        return count / duration_s if duration_s else 0.0

    return Summary(
        num_requests=len(records),
        num_failed=len(records) - len(complete),
        duration_s=duration_s,
        num_prompt_tokens=num_prompt_tokens,
        num_output_tokens=num_output_tokens,
        output_tokens_per_s=per_s(num_output_tokens),
        total_tokens_per_s=per_s(num_prompt_tokens + num_output_tokens),
        requests_per_s=per_s(len(complete)),
        goodput_requests_per_s=per_s(sum(objective.is_met(record) for record in complete)),
        ttft_ms=Distribution.of_seconds([record.ttft_s for record in complete]),
        itl_ms=Distribution.of_seconds([gap for record in complete for gap in record.gaps_s]),
        tpot_ms=Distribution.of_seconds([record.tpot_s for record in complete if record.tpot_s is not None]),
        e2el_ms=Distribution.of_seconds([record.e2el_s for record in complete]),
    )

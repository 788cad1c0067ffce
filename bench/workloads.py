"""Workloads: seeded lists of requests that every system under test is given alike.

A specification (`Burst`, `Poisson`, …) and a seed determine prompts, output lengths and arrivals. Each of the three
has a random stream of its own, so that another cap or another rate leaves the prompts as they were.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from bench.trace import read_trace


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """One prompt and the number of tokens to generate for it, EOS ignored."""

    index: int
    prompt_token_ids: tuple[int, ...]
    output_len: int
    arrival_s: float = 0.0          # since the start of the run
    user: int | None = None         # closed loop: sent when this user's request before it has been answered


@dataclass(frozen=True, slots=True)
class Workload:
    """What one run sends, whole: the same object for every system under test."""

    name: str
    seed: int
    parameters: Mapping[str, Any]
    requests: tuple[WorkloadRequest, ...]

    @property
    def num_output_tokens(self) -> int:
        return sum(request.output_len for request in self.requests)

    @property
    def chains(self) -> tuple[tuple[WorkloadRequest, ...], ...]:
        """Requests that wait for one another: a closed-loop user's turns; all others stand alone."""
        chains: dict[tuple[str, int], list[WorkloadRequest]] = {}
        for request in self.requests:
            key = ("request", request.index) if request.user is None else ("user", request.user)
            chains.setdefault(key, []).append(request)
        return tuple(tuple(chain) for chain in chains.values())

    @property
    def fingerprint(self) -> str:
        """A hash of all requests: equal fingerprints mean equal work."""
        return hashlib.sha256(json.dumps(self.to_json()["requests"]).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        requests = [[r.index, r.prompt_token_ids, r.output_len, r.arrival_s, r.user] for r in self.requests]
        return {"name": self.name, "seed": self.seed, "parameters": dict(self.parameters), "requests": requests}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Workload":
        requests = tuple(WorkloadRequest(i, tuple(p), o, a, u) for i, p, o, a, u in values["requests"])
        return cls(values["name"], values["seed"], values["parameters"], requests)


class Draw:
    """The random streams of one workload."""

    def __init__(self, vocabulary: Sequence[int], seed: int) -> None:
        self._vocabulary = np.asarray(vocabulary, dtype=np.int64)
        prompts, lengths, arrivals = np.random.SeedSequence(seed).spawn(3)
        self._prompts = np.random.default_rng(prompts)
        self.lengths = np.random.default_rng(lengths)
        self._arrivals = np.random.default_rng(arrivals)

    def prompt(self, num_tokens: int) -> tuple[int, ...]:
        return tuple(self._prompts.choice(self._vocabulary, num_tokens).tolist())

    def exponential_lengths(self, count: int, *, mean: float, cap: int) -> list[int]:
        """Lengths in [1, cap]: exponential draws, those beyond the cap drawn again, rounded to whole tokens."""
        draws = self.lengths.exponential(mean, count)
        while (beyond := draws > cap).any():
            draws[beyond] = self.lengths.exponential(mean, int(beyond.sum()))
        return [max(1, round(draw)) for draw in draws.tolist()]

    def lognormal_lengths(self, count: int, *, mean: float, sigma: float, cap: int) -> list[int]:
        """Lengths in [1, cap]: lognormal draws whose mean is `mean` before the cap cuts them."""
        draws = self.lengths.lognormal(np.log(mean) - sigma**2 / 2, sigma, count)
        return [min(cap, max(1, round(draw))) for draw in draws.tolist()]

    def poisson_arrivals(self, count: int, *, rate: float) -> list[float]:
        """Seconds at which a Poisson process of `rate` a second has its first `count` events."""
        gaps = self._arrivals.exponential(1 / rate, count)
        return [round(arrival, 6) for arrival in np.cumsum(gaps).tolist()]


@dataclass(frozen=True, slots=True)
class WorkloadSpec(ABC):
    """A kind of workload with its parameters."""

    name: ClassVar[str]

    @abstractmethod
    def requests(self, draw: Draw) -> list[WorkloadRequest]:
        """Draw the requests, in order of their index."""


@dataclass(frozen=True, slots=True)
class Burst(WorkloadSpec):
    """All requests at once: what continuous batching is for."""

    name: ClassVar[str] = "burst"
    num_requests: int
    prompt_len: int
    mean_output_len: int
    cap: int

    def requests(self, draw: Draw) -> list[WorkloadRequest]:
        outputs = draw.exponential_lengths(self.num_requests, mean=self.mean_output_len, cap=self.cap)
        return [WorkloadRequest(i, draw.prompt(self.prompt_len), output) for i, output in enumerate(outputs)]


@dataclass(frozen=True, slots=True)
class Poisson(WorkloadSpec):
    """Prompts of 1 to `prompt_len` tokens that arrive on their own time, whatever the system has finished."""

    name: ClassVar[str] = "poisson"
    num_requests: int
    prompt_len: int
    mean_output_len: int
    cap: int
    rate: float                     # requests/s

    def requests(self, draw: Draw) -> list[WorkloadRequest]:
        prompt_lens = draw.lengths.integers(1, self.prompt_len, self.num_requests, endpoint=True).tolist()
        outputs = draw.exponential_lengths(self.num_requests, mean=self.mean_output_len, cap=self.cap)
        arrivals = draw.poisson_arrivals(self.num_requests, rate=self.rate)
        return [
            WorkloadRequest(i, draw.prompt(prompt_len), output, arrival)
            for i, (prompt_len, output, arrival) in enumerate(zip(prompt_lens, outputs, arrivals, strict=True))
        ]


@dataclass(frozen=True, slots=True)
class Chat(WorkloadSpec):
    """Users who each send a turn, wait for the answer, and send the whole conversation again with the next turn.

    All share one system prompt. The answers inside later prompts are drawn with the workload, not taken from the
    system under test: every system sees the same prompts.
    """

    name: ClassVar[str] = "chat"
    num_users: int
    num_turns: int
    system_len: int
    mean_turn_len: int
    mean_output_len: int
    cap: int
    sigma: float = 0.8              # of the lognormal lengths of turns and answers

    def requests(self, draw: Draw) -> list[WorkloadRequest]:
        system = draw.prompt(self.system_len)
        requests: list[WorkloadRequest] = []
        for user in range(self.num_users):
            turns = draw.lognormal_lengths(self.num_turns, mean=self.mean_turn_len, sigma=self.sigma, cap=self.cap)
            outputs = draw.lognormal_lengths(self.num_turns, mean=self.mean_output_len, sigma=self.sigma, cap=self.cap)
            conversation = system
            for turn, output in zip(turns, outputs, strict=True):
                conversation += draw.prompt(turn)
                requests.append(WorkloadRequest(len(requests), conversation, output, user=user))
                conversation += draw.prompt(output)
        return requests


@dataclass(frozen=True, slots=True)
class LongShort(WorkloadSpec):
    """Short prompts with a few long ones between them, which must not hold the short ones up."""

    name: ClassVar[str] = "long_short"
    num_requests: int
    prompt_len: int
    long_prompt_len: int
    output_len: int
    rate: float                     # requests/s
    long_share: float = 0.05

    def requests(self, draw: Draw) -> list[WorkloadRequest]:
        num_long = round(self.num_requests * self.long_share)
        long_ones = set(draw.lengths.permutation(self.num_requests)[:num_long].tolist())
        arrivals = draw.poisson_arrivals(self.num_requests, rate=self.rate)
        return [
            WorkloadRequest(
                i, draw.prompt(self.long_prompt_len if i in long_ones else self.prompt_len), self.output_len, arrival
            )
            for i, arrival in enumerate(arrivals)
        ]


@dataclass(frozen=True, slots=True)
class Single(WorkloadSpec):
    """One request after another, never two at once: the speed a lone user sees."""

    name: ClassVar[str] = "single"
    num_requests: int
    prompt_len: int
    output_len: int

    def requests(self, draw: Draw) -> list[WorkloadRequest]:
        return [
            WorkloadRequest(i, draw.prompt(self.prompt_len), self.output_len, user=0) for i in range(self.num_requests)
        ]


@dataclass(frozen=True, slots=True)
class Trace(WorkloadSpec):
    """Recorded arrivals and lengths; see `bench.trace` for the files."""

    name: ClassVar[str] = "trace"
    file: str
    num_requests: int | None = None  # the first so many; None: all
    speedup: float = 1.0             # arrivals come this much faster than recorded

    def requests(self, draw: Draw) -> list[WorkloadRequest]:
        blocks: dict[int, tuple[int, ...]] = {}   # recorded block hash -> its tokens
        requests = []
        for i, row in enumerate(read_trace(Path(self.file))[: self.num_requests]):
            prompt: tuple[int, ...] = ()
            for block_hash in row.block_hashes:
                if block_hash not in blocks:
                    blocks[block_hash] = draw.prompt(row.BLOCK_LEN)
                prompt += blocks[block_hash]
            prompt = prompt[: row.prompt_len]
            prompt += draw.prompt(row.prompt_len - len(prompt))
            requests.append(WorkloadRequest(i, prompt, row.output_len, row.arrival_s / self.speedup))
        return requests


def build_workload(spec: WorkloadSpec, vocabulary: Sequence[int], seed: int) -> Workload:
    """The workload of `spec`, its prompts drawn from the token ids in `vocabulary`."""
    return Workload(spec.name, seed, asdict(spec), tuple(spec.requests(Draw(vocabulary, seed))))


SETTINGS: Mapping[str, Mapping[str, WorkloadSpec]] = MappingProxyType({
    "seed": MappingProxyType({
        "burst": Burst(num_requests=1000, prompt_len=512, mean_output_len=128, cap=512),   # caps 32, 128, 512, 1536
        "poisson": Poisson(num_requests=100, prompt_len=512, mean_output_len=128, cap=1536, rate=1.0),  # rates 1, 4
        "chat": Chat(num_users=32, num_turns=6, system_len=512, mean_turn_len=64, mean_output_len=128, cap=512),
        "long_short": LongShort(num_requests=200, prompt_len=64, long_prompt_len=4000, output_len=64, rate=4.0),
        "single": Single(num_requests=4, prompt_len=512, output_len=128),
    }),
    "cpu": MappingProxyType({
        "burst": Burst(num_requests=48, prompt_len=64, mean_output_len=32, cap=128),       # caps 8, 32, 128, 384
        "poisson": Poisson(num_requests=24, prompt_len=64, mean_output_len=32, cap=128, rate=0.3),
        "chat": Chat(num_users=4, num_turns=3, system_len=128, mean_turn_len=24, mean_output_len=24, cap=96),
        "long_short": LongShort(num_requests=40, prompt_len=64, long_prompt_len=800, output_len=64, rate=0.3),
        "single": Single(num_requests=3, prompt_len=64, output_len=64),
    }),
})

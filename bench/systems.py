"""Systems under test: a server over HTTP, the engine in this process. Peers are in `bench.peers`."""

import contextlib
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import aiohttp
from tqdm import tqdm

from bench.http_client import HttpClient
from bench.memory import MemorySampler
from bench.metrics import Objective, RequestRecord, Summary, summarize
from bench.replay import RequestFailed, replay
from bench.server_stats import Sample, ServerFigures, StatsSampler, sample_of_prometheus, sample_of_stats
from bench.workloads import Workload, WorkloadRequest
from engine.api import EngineConfig, EngineError, GenerationRequest, RequestError, SamplingParams, create_engine

OnDone = Callable[[RequestRecord], None]


class System(Protocol):
    """Something that answers workloads. It stays loaded between runs, so that runs of several can be interleaved."""

    name: str

    async def run(self, workload: Workload, on_done: OnDone) -> tuple[list[RequestRecord], ServerFigures]: ...

    @property
    def pid(self) -> int | None:
        """The process whose memory, with its descendants', is the system's; None: not known."""

    @property
    def description(self) -> dict[str, Any]:
        """What it says of itself: versions, threads, time to load."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run of one system over one workload."""

    system: str
    workload: Workload
    repeat: int
    summary: Summary
    server: ServerFigures
    peak_pss_bytes: int | None
    records: tuple[RequestRecord, ...] = field(repr=False)


async def measure(system: System, workload: Workload, objective: Objective, *, repeat: int = 0) -> Measurement:
    """Run the workload once, with a progress bar that counts requests."""
    with tqdm(total=len(workload.requests), desc=f"{system.name} {workload.name}", unit="req") as bar:

        def on_done(record: RequestRecord) -> None:
            bar.update()
            if record.error is not None:
                bar.write(f"request {record.index} failed: {record.error}")

        async with MemorySampler(system.pid) as memory:
            records, figures = await system.run(workload, on_done)
    summary = summarize(records, objective)
    return Measurement(system.name, workload, repeat, summary, figures, memory.peak_bytes, tuple(records))


async def warm_up(system: System, workload: Workload) -> None:
    """Two short requests, so that no run pays for compilation; their prompts share no prefix with the workload's."""
    requests = tuple(
        WorkloadRequest(request.index, request.prompt_token_ids[::-1], min(4, request.output_len))
        for request in workload.requests[:2]
    )
    records, _ = await system.run(Workload("warm-up", workload.seed, {}, requests), lambda record: None)
    if failures := [record.error for record in records if record.error is not None]:
        raise RequestFailed(f"{system.name} failed at the warm-up: {failures[0]}")


class HttpSystem:
    """An OpenAI server that is already running."""

    name = "http"

    def __init__(self, client: HttpClient, server_pid: int | None, version: Any) -> None:
        self._client = client
        self._version = version
        self.pid = server_pid

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(cls, client: HttpClient, *, server_pid: int | None = None) -> "AsyncIterator[HttpSystem]":
        async with client:
            version: Any = None
            with contextlib.suppress(aiohttp.ClientError):
                version = await client.get_json("/version")
            yield cls(client, server_pid, version)

    @property
    def description(self) -> dict[str, Any]:
        return {"url": self._client.url, "version": self._version}

    async def run(self, workload: Workload, on_done: OnDone) -> tuple[list[RequestRecord], ServerFigures]:
        async with StatsSampler(self._sample) as sampler:
            records = await replay(workload, self._client.send, on_done)
        return records, sampler.figures()

    async def _sample(self) -> Sample:
        try:
            return sample_of_prometheus(await self._client.get_text("/metrics"))
        except (aiohttp.ClientError, TimeoutError):
            return {}


class EngineSystem:
    """Our engine in this process, without Ray or HTTP: what serving costs is the difference to `http`."""

    name = "engine"
    pid = os.getpid()

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._engine = create_engine(config)
        self._num_sent = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def start(cls, config: EngineConfig) -> "AsyncIterator[EngineSystem]":
        system = cls(config)
        await system._engine.start()
        try:
            yield system
        finally:
            await system._engine.shutdown()

    @property
    def description(self) -> dict[str, Any]:
        return {"config": self._config.model_dump(mode="json")}

    async def run(self, workload: Workload, on_done: OnDone) -> tuple[list[RequestRecord], ServerFigures]:
        async with StatsSampler(self._sample) as sampler:
            records = await replay(workload, self._send, on_done)
        return records, sampler.figures()

    async def _sample(self) -> Sample:
        return sample_of_stats(self._engine.stats())

    async def _send(self, request: WorkloadRequest, delivered: Callable[[], None]) -> int:
        self._num_sent += 1
        generation = GenerationRequest(
            request_id=f"bench-{self._num_sent}",
            prompt_token_ids=request.prompt_token_ids,
            sampling=SamplingParams(max_tokens=request.output_len, temperature=0.0, ignore_eos=True),
        )
        num_output_tokens = 0
        try:
            async for output in self._engine.generate(generation):
                if output.error is not None:
                    raise RequestFailed(output.error)
                if output.token_ids:
                    delivered()
                num_output_tokens = output.num_output_tokens
        except (RequestError, EngineError) as error:
            raise RequestFailed(f"{type(error).__name__}: {error}") from error
        return num_output_tokens

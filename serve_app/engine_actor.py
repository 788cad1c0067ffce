"""EngineActor: the Ray actor that hosts one engine and holds its device, and whose one stream carries all outputs."""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from engine.api import Engine, EngineConfig, EngineRequest, EngineStats, RequestOutput, create_engine

STATS_EVERY_S = 0.25
SWITCH_INTERVAL_S = 0.0005


def pause_beside_engine(num_requests: int) -> float:
    """Between two messages of an engine that computes on the cores that carry them.

    From a token to its client an item takes some 0.5 ms of them. Up to 31 requests all items together take a sixteenth
    of one core at most; more requests take more, for every stream is to move four times a second, and none more than
    20 times. First and last outputs do not wait.
    """
    return min(0.25, max(0.05, 0.008 * num_requests))


@dataclass(frozen=True, slots=True)
class StepMessage:
    """What the actor's stream carries: the outputs of all requests since the last message."""

    outputs: tuple[RequestOutput, ...]               # at most one per request; empty: a heartbeat
    stats: EngineStats | None                        # at least in every heartbeat


class EngineActor:
    """The engine's process: the Engine protocol, for one consumer of its steps."""

    def __init__(self, config: EngineConfig, create: Callable[[EngineConfig], Engine] = create_engine) -> None:
        # The step thread comes back to Python some 300 times a step; at the default of 5 ms it would often wait long
        # for this process's event loop, whose own work is measured in tenths of a millisecond.
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._engine = create(config)
        self._pause_for = None if config.device == "cuda" else pause_beside_engine

    async def start(self) -> EngineStats:
        """Raises ConfigError."""
        await self._engine.start()
        return self._engine.stats()

    async def steps(self) -> AsyncGenerator[StepMessage, None]:
        """Outputs and heartbeats over the engine's whole life. Raises EngineDeadError when it dies or is stuck."""
        told_s = time.monotonic()
        async for outputs in self._engine.steps(self._pause_for):
            stats, now_s = None, time.monotonic()
            if not outputs or now_s - told_s >= STATS_EVERY_S:
                await self._engine.check_health()
                stats, told_s = self._engine.stats(), now_s
            yield StepMessage(outputs, stats)

    async def submit(self, requests: tuple[EngineRequest, ...]) -> None:
        """Accept all of `requests` or, raising RequestError, none."""
        results = await asyncio.gather(*map(self._engine.submit, requests), return_exceptions=True)
        errors = [result for result in results if result is not None]
        if errors:
            for request in requests:
                await self._engine.abort(request.request_id)
            raise errors[0]

    async def abort(self, request_id: str) -> None:
        await self._engine.abort(request_id)

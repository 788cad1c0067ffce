"""Fleet: what the ingress knows of its model's replicas, asked in the background so that no answer waits for them."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from ray.serve.exceptions import DeploymentUnavailableError

from engine.api import EngineStats
from serve_app.errors import unavailable
from serve_app.replicas import Replicas, ReplicaStats

log = logging.getLogger(__name__)

POLL_S = 0.5
POLL_TIMEOUT_S = 1.0
FRESH_S = 3.0                 # a loop that has not come round for longer is not healthy, unless it is in a step
BUSY_S = 60.0                 # a single step longer than this counts as stuck
READY_WAIT_S = 30.0           # a request that finds no replica waits this long for one to come (back)


@dataclass(frozen=True, slots=True)
class Sighting:
    """What a replica said, and when."""

    replica: ReplicaStats
    seen_s: float

    def is_fresh(self, now_s: float) -> bool:
        stats, since_s = self.replica.stats, now_s - self.seen_s
        limit_s = BUSY_S if stats.is_stepping else FRESH_S
        return self.replica.is_alive and since_s < FRESH_S and stats.heartbeat_age_s + since_s < limit_s


class Fleet:
    """The last word of every replica."""

    def __init__(self, replicas: Replicas, clock: Callable[[], float] = time.monotonic) -> None:
        self._replicas = replicas
        self._clock = clock
        self._sightings: dict[str, Sighting] = {}     # replica id -> its last word
        self._changed = asyncio.Condition()

    async def poll_forever(self) -> None:
        while True:
            await self.poll()
            await asyncio.sleep(POLL_S)

    async def poll(self) -> None:
        """Ask once. A replica that does not answer keeps its last word, which soon is no longer fresh."""
        try:
            async with asyncio.timeout(2 * POLL_TIMEOUT_S):
                answers = await self._replicas.stats(POLL_TIMEOUT_S)
        except (DeploymentUnavailableError, TimeoutError):
            answers = []
        except Exception:
            log.warning("replicas could not be asked", exc_info=True)
            answers = []
        now_s = self._clock()
        seen = {answer.replica: Sighting(answer, now_s) for answer in answers}
        kept = {key: old for key, old in self._sightings.items() if old.is_fresh(now_s)}
        async with self._changed:
            self._sightings = kept | seen
            self._changed.notify_all()

    @property
    def is_healthy(self) -> bool:
        return any(True for _ in self._fresh())

    def _fresh(self) -> Iterator[EngineStats]:
        now_s = self._clock()
        return (s.replica.stats for s in self._sightings.values() if s.is_fresh(now_s))

    def stats(self) -> Mapping[str, EngineStats]:     # replica id -> its stats, their age brought up to date
        now_s = self._clock()
        return {
            key: replace(
                sighting.replica.stats,
                heartbeat_age_s=sighting.replica.stats.heartbeat_age_s + now_s - sighting.seen_s,
            )
            for key, sighting in self._sightings.items()
        }

    async def ready(self, timeout_s: float = READY_WAIT_S) -> EngineStats:
        """Some healthy replica's stats, once there is one; 503 if none comes in time."""
        if not self.is_healthy:
            try:
                async with asyncio.timeout(timeout_s), self._changed:
                    await self._changed.wait_for(lambda: self.is_healthy)
            except TimeoutError:
                raise unavailable("no replica of the model is ready; try again") from None
        return next(self._fresh())

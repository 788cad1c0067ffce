"""RemoteEngine: the engine of a replica as seen from the replica's process; it runs in an EngineActor."""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import ray
from ray import serve
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.placement_group import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from engine.api import (
    Engine,
    EngineConfig,
    EngineDeadError,
    EngineError,
    EngineRequest,
    EngineStats,
    RequestOutput,
    create_engine,
)
from serve_app.config import AppConfig
from serve_app.engine_actor import EngineActor

log = logging.getLogger(__name__)

PROCESS_DIED = "the engine's process died"

Result = TypeVar("Result")

WATCH_EVERY_S = 1.0
SILENCE_LIMIT_S = 10.0        # heartbeats come twice a second: an actor silent for longer hangs, and is killed
LAST_WORDS_S = 1.0            # between the engine's death and the replica's: error events reach their clients


class Receiver(Protocol):
    """Where the outputs of some requests go."""

    def put(self, output: RequestOutput) -> None: ...

    def fail(self, error: EngineError) -> None:
        """The engine has died: nothing more will come for any request."""


class ReplicaEngine(Protocol):
    """An engine as a replica uses it: for all the choices of one client's request at once."""

    async def start(self) -> None: ...

    async def begin(self, requests: tuple[EngineRequest, ...], receiver: Receiver) -> None:
        """Accept all of `requests`, of which `receiver` is told from now on, or none, raising RequestError."""

    def abandon(self, request_ids: Iterable[str]) -> None:
        """Abort requests that were accepted. Nobody is told of them any more."""

    def stats(self) -> EngineStats: ...
    async def check_health(self) -> None: ...
    def end(self, cause: str) -> None: ...


def remote_engine(
    config: AppConfig, create: Callable[[EngineConfig], Engine] = create_engine
) -> "RemoteEngine":
    """An engine in a new actor, which takes all of the replica's placement group: the replica itself needs nothing."""
    group = get_current_placement_group()
    if group is None:
        raise RuntimeError("LLMServer needs placement_group_bundles, for its engine's CPUs and GPU")
    bundle = group.bundle_specs[0]
    num_cpus, num_gpus = bundle.get("CPU", 0), bundle.get("GPU", 0)
    device = ("cuda" if num_gpus else "cpu") if config.device == "auto" else config.device
    num_threads = config.num_threads or max(1, int(num_cpus))
    config = config.model_copy(update={"device": device, "num_threads": num_threads})
    replica = serve.get_replica_context()
    actor_class = ray.remote(EngineActor).options(
        name=f"{replica.app_name}#EngineActor#{replica.replica_id.unique_id}",
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        max_restarts=0,
        scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0),
    )
    return RemoteEngine(actor_class.remote(config, create))


class RemoteEngine:
    """Submits to the actor, hands out what its one stream brings, and watches it.

    An actor that dies, fails or falls silent ends every open request at once, and soon after the replica's process:
    Serve replaces a dead replica within seconds, an unhealthy one only after several health checks.
    """

    def __init__(
        self,
        actor: Any,                                   # handle of an EngineActor
        *,
        clock: Callable[[], float] = time.monotonic,
        exit_process: Callable[[int], object] = os._exit,
    ) -> None:
        self._actor = actor
        self._clock = clock
        self._exit_process = exit_process
        self._receivers: dict[str, Receiver] = {}     # request_id of a live request -> who is told of it
        self._stats = EngineStats()
        self._heard_s = clock()
        self._death: EngineDeadError | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._stats = await _unwrapped(self._actor.start.remote())
        self._heard_s = self._clock()
        self._keep(asyncio.create_task(self._listen()))
        self._keep(asyncio.create_task(self._watch()))

    async def begin(self, requests: tuple[EngineRequest, ...], receiver: Receiver) -> None:
        await self.check_health()
        request_ids = [request.request_id for request in requests]
        self._receivers.update(dict.fromkeys(request_ids, receiver))     # outputs may overtake the actor's answer
        submission = asyncio.ensure_future(_unwrapped(self._actor.submit.remote(requests)))
        try:
            await asyncio.shield(submission)
        except BaseException:
            self._forget(request_ids)
            self._keep(asyncio.create_task(self._abort(request_ids, submission)))
            raise

    def abandon(self, request_ids: Iterable[str]) -> None:
        self._forget(request_ids)
        for request_id in request_ids:
            self._actor.abort.remote(request_id)

    def _forget(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._receivers.pop(request_id, None)

    def stats(self) -> EngineStats:
        """The actor's last word, aged by the time since it came."""
        silence_s = self._clock() - self._heard_s
        return replace(self._stats, heartbeat_age_s=self._stats.heartbeat_age_s + silence_s)

    async def _abort(self, request_ids: Iterable[str], submission: "asyncio.Future[None]") -> None:
        """Not before the actor has answered: an abort that overtakes its request would be lost."""
        await asyncio.wait((submission,))
        if submission.exception() is None:
            self.abandon(request_ids)

    def _keep(self, task: "asyncio.Task[None]") -> None:
        """Hold on to `task` while it runs: the event loop does not."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def check_health(self) -> None:
        if self._death is not None:
            raise self._death

    async def _listen(self) -> None:
        """Deliver what the actor streams, until it ends, which is its end."""
        try:
            async for reference in self._actor.steps.options(num_returns="streaming").remote():
                message = await reference
                if message.stats is not None:
                    self._stats, self._heard_s = message.stats, self._clock()
                self._deliver(message.outputs)
            self.end("the engine shut down")
        except RayTaskError as error:
            self.end(str(error.cause))
        except RayError as error:
            log.error("%s", error)
            self.end(PROCESS_DIED)

    def _deliver(self, outputs: Iterable[RequestOutput]) -> None:
        for output in outputs:
            receiver = self._receivers.get(output.request_id)
            if receiver is None:
                continue
            if output.is_finished:
                del self._receivers[output.request_id]
            receiver.put(output)

    async def _watch(self) -> None:
        """Counts looks rather than time: where this process was held up, the actor's word may be waiting here."""
        num_silent_looks, heard_s = 0, self._heard_s
        while num_silent_looks * WATCH_EVERY_S < SILENCE_LIMIT_S:
            await asyncio.sleep(WATCH_EVERY_S)
            num_silent_looks = num_silent_looks + 1 if self._heard_s == heard_s else 0
            heard_s = self._heard_s
        self.end(f"the engine's process has been silent for {SILENCE_LIMIT_S:g} s")

    def end(self, cause: str) -> None:
        """Fail every open request with EngineDeadError, kill the actor, and soon after end this process."""
        if self._death is not None:
            return
        log.error("%s; this replica ends", cause)
        self._death = EngineDeadError(cause)
        for receiver in set(self._receivers.values()):
            receiver.fail(self._death)
        ray.kill(self._actor)
        asyncio.get_running_loop().call_later(LAST_WORDS_S, self._exit_process, 1)


async def _unwrapped(call: Awaitable[Result]) -> Result:
    """The result of an actor call; errors are the engine's own rather than Ray's wrappers."""
    try:
        return await call
    except RayTaskError as error:
        raise error.cause from None
    except RayActorError as error:
        raise EngineDeadError(PROCESS_DIED) from error

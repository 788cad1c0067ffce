"""LLMServer: the deployment with one engine per replica; sends its outputs to the ingresses, answers for its health."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

from ray import serve
from ray.serve.exceptions import RayServeException

from engine.api import EngineDeadError, EngineRequest, EngineStats, RequestError
from serve_app.config import AppConfig
from serve_app.mailbox import Mailbox
from serve_app.metrics import RayMetrics
from serve_app.parcel import Parcel
from serve_app.remote_engine import ReplicaEngine
from serve_app.replicas import ReplicaStats

REPORT_EVERY_S = 1.0

EngineFactory = Callable[[AppConfig], ReplicaEngine]


class LLMServer:
    """One replica. Holds no resources of its own: device and cores belong to its engine's actor."""

    async def __init__(  # type: ignore[misc]         # Serve awaits it
        self, config: AppConfig, engine_factory: EngineFactory
    ) -> None:
        """Raises ConfigError, which fails the deployment, if the engine cannot start."""
        self._served_model_name = config.served_model_name
        self._replica = _replica_id()
        self._mailboxes: dict[str, Mailbox] = {}     # mailbox id -> what an ingress is to be sent
        self._engine = engine_factory(config)
        await self._engine.start()
        self._metrics = RayMetrics()
        self._reporting = asyncio.create_task(self._report_forever())

    async def generate(self, requests: tuple[EngineRequest, ...], mailbox_id: str) -> AsyncGenerator[Parcel, None]:
        """Run `requests`, all of one client's; what they gain goes to the mailbox, of which this call is a carrier.

        Errors are in the last parcel: Serve takes what is raised for a fault of ours, with a traceback in the log.
        Closing the stream, as Serve does when the ingress dies, aborts the requests.
        """
        mailbox = self._mailboxes.setdefault(mailbox_id, Mailbox(self._replica))
        call = mailbox.open(request.request_id for request in requests)
        is_begun = False
        try:
            try:
                await self._engine.begin(requests, mailbox)
                is_begun = True
                mailbox.accept(call)
            except (RequestError, EngineDeadError) as error:
                call.end(error)
            async with aclosing(mailbox.parcels(call)) as parcels:
                async for parcel in parcels:
                    yield parcel
        finally:
            mailbox.close(call)
            if is_begun and call.unfinished:
                self._engine.abandon(call.unfinished)

    async def abort(self, request_ids: tuple[str, ...]) -> None:
        """End these requests and their calls. Unknown ones are ignored: all replicas are told."""
        for mailbox in self._mailboxes.values():
            mailbox.abort(request_ids)

    async def stats(self) -> ReplicaStats:
        return ReplicaStats(self._replica, await self._is_alive(), self._stats())

    async def check_health(self) -> None:
        """Called by Serve, which replaces the replica if it raises."""
        await self._engine.check_health()

    async def end(self, cause: str) -> None:
        """End every open request with an error that tells `cause`, and the engine with them."""
        self._engine.end(cause)

    async def _is_alive(self) -> bool:
        try:
            await self._engine.check_health()
        except EngineDeadError:
            return False
        return True

    async def _report_forever(self) -> None:
        while True:
            self._metrics.report(self._stats())
            await asyncio.sleep(REPORT_EVERY_S)

    def _stats(self) -> EngineStats:
        """Under the name by which clients know the model."""
        stats = self._engine.stats()
        return replace(stats, model=self._served_model_name or stats.model)


def _replica_id() -> str:
    try:
        return serve.get_replica_context().replica_id.unique_id
    except RayServeException:                        # in-process, in tests
        return "local"

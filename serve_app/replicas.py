"""Replicas: how the ingress reaches the engines."""

import asyncio
import logging
import uuid
from collections import defaultdict
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Protocol

from ray.serve.handle import DeploymentHandle

from engine.api import EngineRequest, EngineStats
from serve_app.errors import unavailable
from serve_app.inbox import Inbox, InOrder
from serve_app.parcel import Outputs, Parcel

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReplicaStats:
    """What one replica says of itself."""

    replica: str
    is_alive: bool                                    # its engine has not died
    stats: EngineStats


class Replicas(Protocol):
    """All replicas of one model."""

    def generate(self, requests: tuple[EngineRequest, ...]) -> AsyncGenerator[Outputs, None]:
        """Outputs of `requests`, all on one replica; an item holds what each has gained since the last item.

        Raises what the engine raises; closing it early aborts the requests.
        """

    async def stats(self, timeout_s: float) -> list[ReplicaStats]:
        """Of every replica that answers in time."""


class HandleReplicas:
    """Replicas behind a Serve handle, by gRPC: a hop costs a third less than through Ray's object store.

    `generate` is one call, but what it gains may come by any call to the same replica: see `mailbox.py`. Hence no call
    is ever cancelled, for it may have outputs of other requests under way; its replica is asked to end it.
    """

    def __init__(self, llm_server: DeploymentHandle[Any]) -> None:
        self._handle = llm_server.options(
            stream=True, _by_reference=False, request_serialization="pickle", response_serialization="pickle"
        )
        self._control = llm_server.options(_by_reference=False)
        self._inboxes: dict[str, Inbox] = {}          # request_id -> where what it gains is awaited
        self._tasks: set[asyncio.Task[None]] = set()
        self._new_mailbox()

    def _new_mailbox(self) -> None:
        self._mailbox = uuid.uuid4().hex
        self._in_order: defaultdict[str, InOrder[tuple[Parcel, Inbox]]] = defaultdict(InOrder)   # by sender

    async def generate(self, requests: tuple[EngineRequest, ...]) -> AsyncGenerator[Outputs, None]:
        inbox = Inbox(tuple(request.request_id for request in requests))
        self._inboxes.update(dict.fromkeys(inbox.request_ids, inbox))
        self._run(self._read(requests, inbox))
        try:
            async with aclosing(inbox.items()) as items:
                async for outputs in items:
                    yield outputs
        finally:
            for request_id in inbox.request_ids:
                del self._inboxes[request_id]
            if not inbox.is_over:
                self._run(self._abort(inbox.request_ids))

    async def stats(self, timeout_s: float) -> list[ReplicaStats]:
        # `results_async` gives all answers or none: one frozen replica would hide the others.
        results: list[Any] = await self._control.broadcast("stats")._fetch_replica_results_async()
        asked = [asyncio.create_task(result.get_async()) for result in results]
        done, late = await asyncio.wait(asked, timeout=timeout_s)
        for task in late:
            task.cancel()
        return [task.result() for task in done if task.exception() is None]

    async def _read(self, requests: tuple[EngineRequest, ...], inbox: Inbox) -> None:
        """Deliver what the call for `requests` carries, to its end, whether they are still wanted or not."""
        mailbox, in_order = self._mailbox, self._in_order
        sender = None
        try:
            parcels: Any = self._handle.generate.remote(requests, mailbox)
            async for parcel in parcels:
                sender = parcel.sender
                for earlier, its_inbox in in_order[sender].put(parcel.number, (parcel, inbox)):
                    self._deliver(earlier, its_inbox)
        except Exception as error:
            self._lose(error, mailbox, inbox, sender)
        except BaseException:
            self._lose(unavailable("the call to the model's replica was cancelled; try again"), mailbox, inbox, sender)
            raise

    def _lose(self, error: Exception, mailbox: str, inbox: Inbox, sender: str | None) -> None:
        """Fail the requests of a call that broke, and with them all others whose outputs it may have had under way."""
        inbox.end(error)
        if mailbox == self._mailbox:
            self._new_mailbox()                       # the numbers in the old one may have a gap now
        for other in set(self._inboxes.values()):
            if sender is not None and other.sender == sender and not other.is_over:
                other.end(error)
                self._run(self._abort(other.request_ids))

    def _deliver(self, parcel: Parcel, inbox: Inbox) -> None:
        unwanted = []
        for output in parcel.outputs:
            if its_inbox := self._inboxes.get(output.request_id):
                its_inbox.sender = parcel.sender
                its_inbox.put(output)
            elif not output.is_finished:
                unwanted.append(output.request_id)
        if unwanted:                                  # the replica did not have them yet when it was told to abort
            self._run(self._abort(tuple(unwanted)))
        if parcel.is_last:
            inbox.end(parcel.error)

    async def _abort(self, request_ids: tuple[str, ...]) -> None:
        """Told to every replica, for Serve knows alone which one has them."""
        try:
            results: list[Any] = await self._control.broadcast("abort", request_ids)._fetch_replica_results_async()
            # an answer that nobody awaits would be cancelled, and the call with it
            await asyncio.gather(*(result.get_async() for result in results), return_exceptions=True)
        except Exception as error:
            log.info("requests could not be aborted: %s", error)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        """Beside the client's request: Serve ends with it all calls that are made in its context."""
        task = asyncio.create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

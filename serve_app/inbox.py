"""Inbox: what has come from a replica for one client's request; InOrder: parcels of one sender as they were sent."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Generic, TypeVar

from engine.api import RequestOutput
from serve_app.parcel import Outputs

Item = TypeVar("Item")


class Inbox:
    """Outputs that come before anybody asks are merged, request by request. For one event loop."""

    def __init__(self, request_ids: tuple[str, ...]) -> None:
        self.request_ids = request_ids
        self.sender: str | None = None               # the replica, once something has come from it
        self.is_over = False
        self._outputs: dict[str, RequestOutput] = {}  # request_id -> merged
        self._error: Exception | None = None
        self._arrived = asyncio.Event()

    def put(self, output: RequestOutput) -> None:
        earlier = self._outputs.get(output.request_id)
        self._outputs[output.request_id] = output if earlier is None else earlier.then(output)
        self._arrived.set()

    def end(self, error: Exception | None = None) -> None:
        """Nothing more will come. What has come is taken first; then `error` is raised."""
        if not self.is_over:
            self.is_over, self._error = True, error
            self._arrived.set()

    async def items(self) -> AsyncGenerator[Outputs, None]:
        while self._outputs or not self.is_over:
            await self._arrived.wait()
            self._arrived.clear()
            if self._outputs:
                outputs, self._outputs = tuple(self._outputs.values()), {}
                yield outputs
        if self._error is not None:
            raise self._error


class InOrder(Generic[Item]):
    """Numbered items, handed on in the order of their numbers, whatever order they come in."""

    def __init__(self) -> None:
        self._next = 0
        self._early: dict[int, Item] = {}            # number -> item that came before one with a lower number

    def put(self, number: int, item: Item) -> Iterator[Item]:
        """Those whose turn it is."""
        self._early[number] = item
        while self._next in self._early:
            self._next += 1
            yield self._early.pop(self._next - 1)

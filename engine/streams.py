"""RequestStreams: fans one multiplexed output stream out to the requests it belongs to, on one event loop."""

import asyncio
from collections.abc import AsyncIterator, Iterable

from engine.outputs import RequestOutput


class RequestStreams:
    """Open streams by request id. Outputs that arrive before the consumer asks are merged into one."""

    def __init__(self) -> None:
        self._streams: dict[str, _Stream] = {}         # request_id -> its open stream

    def __len__(self) -> int:
        return len(self._streams)

    def open(self, request_id: str) -> AsyncIterator[RequestOutput]:
        """A stream that ends after the output with a finish reason, or raises what `fail` was given.

        Raises ValueError if `request_id` is already open: ids are unique among live requests.
        """
        if request_id in self._streams:
            raise ValueError(f"request id {request_id!r} is already in use")
        stream = self._streams[request_id] = _Stream()
        return stream.outputs()

    def close(self, request_id: str) -> None:
        """Forget the stream; later outputs for it are dropped."""
        self._streams.pop(request_id, None)

    def deliver(self, outputs: Iterable[RequestOutput]) -> None:
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is not None:
                stream.put(output)

    def fail(self, error: Exception) -> None:
        """End every open stream with `error`."""
        for stream in self._streams.values():
            stream.fail(error)
        self._streams.clear()


class _Stream:
    def __init__(self) -> None:
        self._pending: RequestOutput | None = None
        self._error: Exception | None = None
        self._arrived = asyncio.Event()

    def put(self, output: RequestOutput) -> None:
        self._pending = output if self._pending is None else self._pending.then(output)
        self._arrived.set()

    def fail(self, error: Exception) -> None:
        self._error = error
        self._arrived.set()

    async def outputs(self) -> AsyncIterator[RequestOutput]:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            pending, self._pending = self._pending, None
            if pending is not None:
                yield pending
                if pending.is_finished:
                    return
            if self._error is not None:
                raise self._error

"""Mailbox: the outputs of one ingress's requests at one replica, on their way there by the calls that wait for them.

Each request of a client is one streamed call of Serve's, which counts at its replica for as long as it is open. An item
of a call costs more than what is in it, so one call carries what all requests gain: the one that has been open for
longest. A call's last item is its own.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Iterable

from engine.api import EngineError, RequestOutput
from serve_app.parcel import Outputs, Parcel

MAX_PAUSE_S = 0.02
PAUSE_PER_STREAM_S = 0.0003          # about what the next hops take for the outputs of one request in an item


def pause_s(num_streams: int) -> float:
    """The shortest time between two items: next to none for a few requests, bounded for many.

    An item per token costs more than the token does; below this pace items carry several tokens.
    """
    return min(MAX_PAUSE_S, PAUSE_PER_STREAM_S * num_streams)


class Call:
    """A call while it is open, with the requests that it was made for."""

    def __init__(self, request_ids: Iterable[str]) -> None:
        self.request_ids = tuple(request_ids)
        self.unfinished = set(self.request_ids)
        self.error: EngineError | None = None
        self.is_accepted = False                     # until then nothing of its requests goes out
        self.is_over = False                         # nothing but its last item is to come
        self.woken = asyncio.Event()

    @property
    def is_flowing(self) -> bool:
        """Whether other calls may carry what its requests gain."""
        return self.is_accepted and not self.is_over

    def end(self, error: EngineError | None = None) -> None:
        self.error = self.error or error
        self.is_over = True
        self.woken.set()


class Mailbox:
    """For one event loop. First and last outputs go at once, others in a rhythm: one item every `pause` seconds."""

    def __init__(self, sender: str, pause: Callable[[int], float] = pause_s) -> None:
        self._sender = sender
        self._pause = pause
        self._num_sent = 0
        self._calls: dict[str, Call] = {}            # request_id -> its open call
        self._carriers: dict[Call, None] = {}        # calls that can carry, the oldest first: it does
        self._outputs: dict[str, RequestOutput] = {}  # request_id -> not sent yet, merged
        self._urgent: set[str] = set()               # requests of which the first output is among them, or the last
        self._is_resting = False

    def open(self, request_ids: Iterable[str]) -> Call:
        """A call, to be closed again; from now on outputs of its requests are kept for it.

        They go out once it is accepted: the engine may compute for some before it refuses another.
        """
        call = Call(request_ids)
        self._calls.update(dict.fromkeys(call.request_ids, call))
        return call

    def accept(self, call: Call) -> None:
        """The engine has taken all requests of the call."""
        call.is_accepted = True
        self._urgent.update(request_id for request_id in call.request_ids if request_id in self._outputs)
        self._wake_carrier()

    def close(self, call: Call) -> None:
        """Forget the call. What comes for its requests is dropped."""
        for request_id in call.request_ids:
            self._calls.pop(request_id, None)
        self._take(call.request_ids)
        self._carriers.pop(call, None)
        self._wake_carrier()                         # which may be another one now

    def put(self, output: RequestOutput) -> None:
        request_id = output.request_id
        call = self._calls.get(request_id)
        if call is None:
            return
        earlier = self._outputs.get(request_id)
        merged = output if earlier is None else earlier.then(output)
        self._outputs[request_id] = merged
        if output.is_finished:
            call.unfinished.discard(request_id)
            if not call.unfinished:
                call.end()
                return
        if not call.is_accepted:
            return
        if output.is_finished or len(merged.token_ids) == output.num_output_tokens:
            self._urgent.add(request_id)
        self._wake_carrier()

    def abort(self, request_ids: Collection[str]) -> None:
        """End the calls of these requests."""
        for request_id in request_ids:
            if call := self._calls.get(request_id):
                call.end()

    def fail(self, error: EngineError) -> None:
        """End all calls with `error`."""
        for call in self._calls.values():
            call.end(error)

    async def parcels(self, call: Call) -> AsyncGenerator[Parcel, None]:
        """What `call` is to send; ends after its last parcel."""
        self._carriers[call] = None
        self._wake_carrier()
        while not call.is_over:
            await call.woken.wait()
            call.woken.clear()
            if not call.is_over and call is self._carrier and (outputs := self._due()):
                yield self._parcel(outputs)
        outputs = self._take(call.request_ids)
        yield self._parcel(outputs if call.is_accepted else (), is_last=True, error=call.error)

    def _parcel(self, outputs: Outputs, *, is_last: bool = False, error: EngineError | None = None) -> Parcel:
        number, self._num_sent = self._num_sent, self._num_sent + 1
        return Parcel(self._sender, number, outputs, is_last, error)

    @property
    def _carrier(self) -> Call | None:
        return next(iter(self._carriers), None)

    def _wake_carrier(self) -> None:
        if self._carrier and self._outputs and (self._urgent or not self._is_resting):
            self._carrier.woken.set()

    def _due(self) -> Outputs:
        """What is to go now: all, or in a pause what is urgent."""
        if self._is_resting:
            return self._take(tuple(self._urgent))
        outputs = self._take([request_id for request_id in self._outputs if self._calls[request_id].is_flowing])
        if outputs:
            self._is_resting = True
            asyncio.get_running_loop().call_later(self._pause(len(self._calls)), self._end_rest)
        return outputs

    def _take(self, request_ids: Collection[str]) -> Outputs:
        found = (self._outputs.pop(request_id, None) for request_id in request_ids)
        outputs = tuple(output for output in found if output is not None)
        self._urgent.difference_update(request_ids)
        return outputs

    def _end_rest(self) -> None:
        self._is_resting = False
        self._wake_carrier()

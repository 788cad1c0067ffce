"""Outbox: the outputs of many requests on their way to one consumer, which takes them in a rhythm of its own."""

import asyncio
from collections.abc import Callable

from engine.outputs import RequestOutput

PauseFor = Callable[[int], float]                      # number of requests in an item -> seconds until the next


class Outbox:
    """What comes while nobody takes it is merged, request by request. For one event loop."""

    def __init__(self) -> None:
        self._outputs: dict[str, RequestOutput] = {}   # request_id -> merged
        self._urgent: set[str] = set()                 # requests whose first or last output is among them
        self._filled, self._hurried = asyncio.Event(), asyncio.Event()

    def __bool__(self) -> bool:
        return bool(self._outputs)

    def put(self, output: RequestOutput) -> None:
        earlier = self._outputs.get(output.request_id)
        merged = output if earlier is None else earlier.then(output)
        self._outputs[output.request_id] = merged
        self._filled.set()
        if output.is_finished or len(merged.token_ids) == output.num_output_tokens:
            self._urgent.add(output.request_id)
            self._hurried.set()

    def wake(self) -> None:
        """Whoever waits comes back."""
        self._filled.set()
        self._hurried.set()

    async def take(self, timeout_s: float) -> tuple[RequestOutput, ...]:
        """All there is, as soon as there is anything; nothing after `timeout_s`, or when it is woken."""
        await _set_within(self._filled, timeout_s)
        outputs, self._outputs = tuple(self._outputs.values()), {}
        self._urgent.clear()
        self._filled.clear()
        self._hurried.clear()
        return outputs

    async def take_urgent(self, timeout_s: float) -> tuple[RequestOutput, ...]:
        """First and last outputs as soon as there are any, what else their requests gained included."""
        await _set_within(self._hurried, timeout_s)
        outputs = tuple(self._outputs.pop(request_id) for request_id in self._urgent)
        self._urgent.clear()
        self._hurried.clear()
        return outputs


async def _set_within(event: asyncio.Event, timeout_s: float) -> None:
    if event.is_set():
        return
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        pass

"""Continuous batching over a fixed number of slots, as llama.cpp's own server does it, around any decode function.

A batch holds the last token of every slot that generates, then prompt tokens of the others, oldest first, up to
`batch_tokens`; only rows that are sampled from ask for logits. A slot is free again at its request's last token.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.workloads import WorkloadRequest


@dataclass(frozen=True, slots=True)
class Row:
    """One token of a batch."""

    token: int
    position: int
    slot: int
    wants_logits: bool


# One batch through the model; returns the next token of each row that wants logits, in their order.
Decode = Callable[[Sequence[Row]], Sequence[int]]


@dataclass(slots=True)
class _Slot:
    request: WorkloadRequest
    num_decoded: int = 0                    # tokens of prompt and output in the KV cache
    output: list[int] = field(default_factory=list)


class SlotBatcher:
    """The queue and the slots."""

    def __init__(self, decode: Decode, forget: Callable[[int], None], *, num_slots: int, batch_tokens: int) -> None:
        """`forget` empties a slot's KV cache."""
        self._decode = decode
        self._forget = forget
        self._batch_tokens = batch_tokens
        self._waiting: deque[WorkloadRequest] = deque()
        self._slots: dict[int, _Slot] = {}                   # in order of admission
        self._free = list(range(num_slots - 1, -1, -1))      # the lowest last

    def add(self, request: WorkloadRequest) -> None:
        self._waiting.append(request)

    def step(self) -> list[int]:
        """One batch; the indices of the requests that got a token."""
        while self._waiting and self._free:
            self._slots[self._free.pop()] = _Slot(self._waiting.popleft())
        rows = self._rows()
        sampled = self._decode(rows)
        asked = [row.slot for row in rows if row.wants_logits]
        for row in rows:
            self._slots[row.slot].num_decoded += 1
        indices = []
        for number, token in zip(asked, sampled, strict=True):
            slot = self._slots[number]
            slot.output.append(token)
            indices.append(slot.request.index)
            if len(slot.output) == slot.request.output_len:
                del self._slots[number]
                self._free.append(number)
                self._forget(number)
        return indices

    def _rows(self) -> list[Row]:
        generating = {number: slot for number, slot in self._slots.items() if slot.output}
        rows = [Row(slot.output[-1], slot.num_decoded, number, True) for number, slot in generating.items()]
        for number, slot in self._slots.items():
            if slot.output:
                continue
            prompt, first = slot.request.prompt_token_ids, slot.num_decoded
            end = min(len(prompt), first + self._batch_tokens - len(rows))
            rows += [Row(prompt[i], i, number, i == len(prompt) - 1) for i in range(first, end)]
        return rows

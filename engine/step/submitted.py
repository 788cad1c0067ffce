"""SubmittedStep: a step that the device works on, and what the host does once its tokens are there."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engine.outputs import TokenLogprobs
from engine.sampling.logprobs import token_logprobs
from engine.sampling.penalties import PenaltyState
from engine.sampling.sampler import NON_FINITE
from engine.scheduling.plan import StepResult
from engine.step.token_table import Row, TokenTable


class Readback:
    """A tensor on its way to the host: the copy is queued behind the step, and only `numpy` waits for it."""

    def __init__(self, values: Tensor) -> None:
        self._event = None
        if values.device.type == "cuda":
            self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._host.copy_(values, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()
        else:
            self._host = values

    def numpy(self) -> npt.NDArray[np.int64]:
        if self._event is not None:
            self._event.synchronize()
        array: npt.NDArray[np.int64] = self._host.numpy()
        return array


@dataclass(frozen=True, slots=True)
class Sampling:
    """What a step draws. Rows are those of the requests that sample, in batch order."""

    rows: Sequence[Row]
    indices: npt.NDArray[np.int64]         # of `rows` in the token table
    positions: npt.NDArray[np.int64]       # tokens before the one that is drawn
    tokens: Readback                       # -1: the row's logits have no distribution
    with_logprobs: Sequence[int]           # places in `rows`
    raw_logits: Tensor | None              # of those, before penalties


class SubmittedStep:
    """The PendingStep of ModelRunner."""

    def __init__(
        self,
        table: TokenTable,
        penalties: dict[str, PenaltyState],
        sampling: Sampling | None,
        prompt_logprobs: dict[str, tuple[TokenLogprobs, ...]],
        times_s: dict[str, float],
        clock: Callable[[], float],
    ) -> None:
        self._table, self._penalties, self._clock = table, penalties, clock
        self._sampling = sampling
        self._prompt_logprobs = prompt_logprobs
        self._times_s = times_s
        self._result: StepResult | None = None

    @property
    def is_resolved(self) -> bool:
        return self._result is not None

    @torch.inference_mode()
    def result(self) -> StepResult:
        if self._result is None:
            begun_s = self._clock()
            found = StepResult({}) if self._sampling is None else self._take(self._sampling)
            times_s = {**self._times_s, "sample": self._times_s["sample"] + self._clock() - begun_s}
            self._result = replace(found, prompt_logprobs=self._prompt_logprobs, times_s=times_s)
            self._sampling = None                              # and with it the logits
        return self._result

    def _take(self, sampling: Sampling) -> StepResult:
        """What was drawn, as soon as it is there."""
        tokens = sampling.tokens.numpy()
        here = np.fromiter(map(self._table.holds, sampling.rows), np.bool_, len(sampling.rows))
        self._table.fill(sampling.indices[here], sampling.positions[here], tokens[here])
        ids = [row.request_id for row in sampling.rows]
        drawn: list[int] = tokens.tolist()
        sampled = {request_id: token for request_id, token in zip(ids, drawn, strict=True) if token >= 0}
        complete = self._count(sampling.rows, sampled) if self._penalties else frozenset()
        logprobs: dict[str, TokenLogprobs] = {}
        if sampling.raw_logits is not None:
            places = sampling.with_logprobs
            entries = token_logprobs(
                sampling.raw_logits,
                [max(drawn[i], 0) for i in places],
                [sampling.rows[i].generation.sampling.logprobs or 0 for i in places],
            )
            logprobs = {ids[i]: entry for i, entry in zip(places, entries, strict=True) if ids[i] in sampled}
        errors = {request_id: self._why_none(request_id) for request_id in ids if request_id not in sampled}
        return StepResult(sampled, logprobs, errors=errors, complete=complete)

    def _count(self, rows: Sequence[Row], sampled: Mapping[str, int]) -> frozenset[str]:
        """Tells the penalties of what was drawn; returns the requests whose output is complete with it."""
        complete = set()
        for row in rows:
            state = self._penalties.get(row.request_id)
            if state is not None and row.request_id in sampled and self._table.holds(row):
                state.append(sampled[row.request_id])
                if state.is_complete:
                    complete.add(row.request_id)
        return frozenset(complete)

    def _why_none(self, request_id: str) -> str:
        """Why no token could be drawn: masks may leave none."""
        state = self._penalties.get(request_id)
        return (None if state is None else state.dead_end) or NON_FINITE

"""Penalties, biases and masks: what a request changes in its own logits before a token is drawn.

In this order, on float32 logits:
    repetition penalty    tokens of prompt and output: logit / p where positive, logit · p where negative (transformers)
    frequency, presence   tokens of the output: logit - frequency · count - presence (OpenAI)
    logit_bias            logit + bias
    min_tokens            -inf for the tokens that would end the request, until it has so many

Each row depends on its own request only, and on its tokens only: the same after a preemption or a resume.
"""

from collections.abc import Collection, Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from engine.sampling.params import SamplingParams

_Rows = list[tuple[int, "PenaltyState"]]           # (row of the logits, the request's state)


class PenaltyState:
    """One request's tokens as penalties see them. The runner holds it and appends every token it samples.

    All ids but those of stop tokens lie within the vocabulary: EngineCore has checked them.
    """

    def __init__(
        self,
        sampling: SamplingParams,
        prompt_token_ids: Sequence[int],
        output_token_ids: Sequence[int] = (),
        *,
        eos_token_ids: Collection[int] = (),
        vocab_size: int,
    ) -> None:
        self.sampling = sampling
        self.bias_ids = np.fromiter(sampling.logit_bias.keys(), np.int64)
        self.bias = np.fromiter(sampling.logit_bias.values(), np.float32)
        # Ids beyond the vocabulary are legal here: they end nothing, so nothing has to be masked.
        ending = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else eos_token_ids)}
        self.ending_ids = np.array(sorted(token_id for token_id in ending if 0 <= token_id < vocab_size), np.int64)
        self._num_output_tokens = 0
        repeatable = set(prompt_token_ids) if sampling.repetition_penalty != 1.0 else set[int]()
        self._slots = {token_id: slot for slot, token_id in enumerate(sorted(repeatable))}
        self._ids = np.fromiter(self._slots, np.int64)             # slot -> token id; beyond len(_slots) unused
        self._counts = np.zeros(len(self._slots), np.float32)      # slot -> times in the output
        for token_id in output_token_ids:
            self.append(token_id)

    def append(self, token_id: int) -> None:
        """Count one more output token."""
        self._num_output_tokens += 1
        slot = self._slots.setdefault(token_id, len(self._slots))
        if slot == len(self._ids):
            self._ids = np.resize(self._ids, 2 * slot + 16)
            self._counts = np.concatenate([self._counts, np.zeros(slot + 16, np.float32)])
        self._ids[slot] = token_id
        self._counts[slot] += 1

    @property
    def penalised(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Token ids that penalties concern, and how often each is in the output."""
        return self._ids[:len(self._slots)], self._counts[:len(self._slots)]

    @property
    def has_penalties(self) -> bool:
        sampling = self.sampling
        return sampling.repetition_penalty != 1.0 or bool(sampling.presence_penalty or sampling.frequency_penalty)

    @property
    def must_go_on(self) -> bool:
        return self._num_output_tokens < self.sampling.min_tokens


def apply_penalties(logits: torch.Tensor, states: Sequence[PenaltyState | None]) -> None:
    """Change `logits` [num_rows, vocab_size] in place; `states` has one entry a row, None where nothing changes."""
    rows = [(row, state) for row, state in enumerate(states) if state is not None]
    _apply_token_penalties(logits, [(row, state) for row, state in rows if state.has_penalties])
    _apply_bias(logits, [(row, state) for row, state in rows if state.bias_ids.size])
    _mask_ending(logits, [(row, state) for row, state in rows if state.must_go_on and state.ending_ids.size])


def _apply_token_penalties(logits: torch.Tensor, rows: _Rows) -> None:
    if not rows:
        return
    penalised = [state.penalised for _, state in rows]
    lengths = [len(ids) for ids, _ in penalised]
    index = _index(logits, rows, [ids for ids, _ in penalised])
    counts = _tensor(logits, np.concatenate([counts for _, counts in penalised]))

    def spread(values: Iterable[float]) -> torch.Tensor:  # one value a request -> one a penalised token
        return _tensor(logits, np.repeat(np.fromiter(values, np.float32), lengths))

    repetition = spread(state.sampling.repetition_penalty for _, state in rows)
    values = logits[index]
    values = torch.where(values > 0, values / repetition, values * repetition)
    values -= spread(state.sampling.frequency_penalty for _, state in rows) * counts
    values -= spread(state.sampling.presence_penalty for _, state in rows) * (counts > 0)
    logits[index] = values


def _apply_bias(logits: torch.Tensor, rows: _Rows) -> None:
    if rows:
        index = _index(logits, rows, [state.bias_ids for _, state in rows])
        logits[index] = logits[index] + _tensor(logits, np.concatenate([state.bias for _, state in rows]))


def _mask_ending(logits: torch.Tensor, rows: _Rows) -> None:
    if rows:
        logits[_index(logits, rows, [state.ending_ids for _, state in rows])] = float("-inf")


def _index(
    logits: torch.Tensor, rows: _Rows, ids: Sequence[npt.NDArray[np.int64]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and column of every (request, token id)."""
    row_numbers = np.repeat(np.array([row for row, _ in rows], np.int64), [len(row_ids) for row_ids in ids])
    return _tensor(logits, row_numbers), _tensor(logits, np.concatenate(ids))


def _tensor(logits: torch.Tensor, values: npt.NDArray[np.generic]) -> torch.Tensor:
    return torch.from_numpy(values).to(logits.device, non_blocking=True)

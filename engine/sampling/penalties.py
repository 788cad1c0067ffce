"""Penalties, biases and masks: what a request changes in its own logits before a token is drawn.

In this order, on float32 logits:
    repetition penalty    tokens of prompt and output: logit / p where positive, logit · p where negative (transformers)
    frequency, presence   tokens of the output: logit - frequency · count - presence (OpenAI)
    logit_bias            logit + bias
    min_tokens            -inf for the tokens that would end the request, until it has so many
    bad_words             -inf for a token that would complete one
    allowed_token_ids     -inf for all others
    grammar               -inf for what it does not allow next; where it allows nothing but an end, min_tokens yields

Each row depends on its own request only, and on its tokens only: the same after a preemption or a resume.
"""

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
import torch

from engine.sampling.grammar.compiler import Grammar
from engine.sampling.grammar.state import GrammarState, pack
from engine.sampling.params import SamplingParams
from kernels import ops

_Ids = npt.NDArray[np.int32]


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
        grammar: Grammar | None = None,
    ) -> None:
        self.sampling = sampling
        self.bias_ids = np.fromiter(sampling.logit_bias.keys(), np.int32)
        self.bias = np.fromiter(sampling.logit_bias.values(), np.float32)
        # Ids beyond the vocabulary are legal here: they end nothing, so nothing has to be masked.
        ending = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else eos_token_ids)}
        self._ending_ids = np.array(sorted(token_id for token_id in ending if 0 <= token_id < vocab_size), np.int32)
        self._bad_words = [(word[:-1], word[-1]) for word in sampling.bad_words]
        self._num_remembered = max((len(start) for start, _ in self._bad_words), default=0)
        self._latest: tuple[int, ...] = ()                         # as many output tokens as a bad word can begin with
        allowed_ids = sampling.allowed_token_ids
        self._allowed = None if allowed_ids is None else pack(allowed_ids, vocab_size)
        self._possible_ends = [i for i in self._ending_ids.tolist() if allowed_ids is None or i in allowed_ids]
        self.grammar = None if grammar is None else GrammarState(grammar, self._possible_ends, vocab_size)
        self._num_output_tokens = 0
        repeatable = set(prompt_token_ids) if sampling.repetition_penalty != 1.0 else set[int]()
        self._slots = {token_id: slot for slot, token_id in enumerate(sorted(repeatable))}
        self._ids = np.fromiter(self._slots, np.int32)             # slot -> token id; beyond len(_slots) unused
        self._counts = np.zeros(len(self._slots), np.int32)        # slot -> times in the output
        for token_id in output_token_ids:
            self.append(token_id)

    def append(self, token_id: int) -> None:
        """Count one more output token."""
        self._num_output_tokens += 1
        if self.grammar is not None:
            self.grammar.append(token_id)
        if self._num_remembered:
            self._latest = (*self._latest, token_id)[-self._num_remembered :]
        slot = self._slots.setdefault(token_id, len(self._slots))
        if slot == len(self._ids):
            self._ids = np.resize(self._ids, 2 * slot + 16)
            self._counts = np.concatenate([self._counts, np.zeros(slot + 16, np.int32)])
        self._ids[slot] = token_id
        self._counts[slot] += 1

    @property
    def penalised(self) -> tuple[_Ids, _Ids]:
        """Token ids that penalties concern, and how often each is in the output."""
        sampling = self.sampling
        if sampling.repetition_penalty == 1.0 and not sampling.presence_penalty and not sampling.frequency_penalty:
            return self._ids[:0], self._counts[:0]
        return self._ids[:len(self._slots)], self._counts[:len(self._slots)]

    @property
    def masked(self) -> _Ids:
        """Token ids that may not be drawn now."""
        is_young = self._num_output_tokens < self.sampling.min_tokens
        if is_young and self.grammar is not None and self.grammar.must_end:
            is_young = False
        ending = self._ending_ids if is_young else self._ending_ids[:0]
        if not self._bad_words:
            return ending
        completing = [last for start, last in self._bad_words if not start or self._latest[-len(start) :] == start]
        return np.union1d(ending, np.array(completing, np.int32)).astype(np.int32)

    @property
    def bitmask(self) -> _Ids | None:
        """int32 [vocab_size / 32, rounded up]: bit i of word w allows token 32 w + i. None: all are allowed."""
        if self.grammar is None:
            return self._allowed
        return self.grammar.allowed if self._allowed is None else self.grammar.allowed & self._allowed

    @property
    def is_complete(self) -> bool:
        """Whether the output is all that its grammar allows, and no token could end it."""
        return self.grammar is not None and not self._possible_ends and self.grammar.is_over

    @property
    def dead_end(self) -> str | None:
        """Why no token may be drawn, if it is for masks."""
        if self.grammar is None or self.bitmask is None:
            return None
        if self.bitmask.any() and not self._bad_words:
            return None
        return self.grammar.error or "grammar, allowed_token_ids and bad_words together leave no token"


def apply_penalties(logits: torch.Tensor, states: Sequence[PenaltyState | None]) -> None:
    """Change `logits` [num_rows, vocab_size] in place; `states` has one entry a row, None where nothing changes."""
    if all(state is None for state in states):
        return
    unchanged = PenaltyState(SamplingParams(max_tokens=0), (), vocab_size=0)
    rows = [unchanged if state is None else state for state in states]
    penalised = [row.penalised for row in rows]
    token_ids = [ids for ids, _ in penalised]
    bias_ids = [row.bias_ids for row in rows]
    masked = [row.masked for row in rows]
    sampling = [row.sampling for row in rows]
    arrays = (
        _start_loc(token_ids),
        np.concatenate(token_ids),
        np.concatenate([counts for _, counts in penalised]),
        np.array([params.repetition_penalty for params in sampling], np.float32),
        np.array([params.frequency_penalty for params in sampling], np.float32),
        np.array([params.presence_penalty for params in sampling], np.float32),
        _start_loc(bias_ids),
        np.concatenate(bias_ids),
        np.concatenate([row.bias for row in rows]),
        _start_loc(masked),
        np.concatenate(masked),
    )
    masks = [row.bitmask for row in rows]
    if all(mask is None for mask in masks):
        ops.apply_penalties(logits, *_on_device(arrays, logits.device))
        return
    whole = np.full(-(-logits.shape[1] // 32), -1, np.int32)
    bitmask = np.concatenate([whole if mask is None else mask for mask in masks])
    *tensors, bits = _on_device((*arrays, bitmask), logits.device)
    tensors.append(bits.view(len(rows), -1))
    ops.apply_penalties(logits, *tensors)


def _start_loc(ids: Sequence[_Ids]) -> _Ids:
    """Where each row's ids begin once all are joined, and where the last ones end."""
    return np.cumsum([0, *(row_ids.size for row_ids in ids)], dtype=np.int32)


def _on_device(arrays: Sequence[_Ids | npt.NDArray[np.float32]], device: torch.device) -> list[torch.Tensor]:
    """The arrays as tensors, moved in one transfer."""
    joined = torch.from_numpy(np.concatenate([array.view(np.int32) for array in arrays]))
    parts = torch.split(joined.to(device, non_blocking=True), [array.size for array in arrays])
    return [
        part.view(torch.float32) if array.dtype == np.float32 else part
        for part, array in zip(parts, arrays, strict=True)
    ]

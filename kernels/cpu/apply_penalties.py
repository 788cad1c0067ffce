"""Penalties, logit bias and masks on a CPU, row by row: scalar arithmetic on the listed tokens, so bits are the row's.

Products and differences are rounded one by one: nothing is fused.
"""

import numpy as np
from torch import Tensor

from kernels.cpu import threads
from kernels.cpu.arrays import flat
from kernels.cpu.jit import kernel
from kernels.cpu.parallel import job, run_job

_FORBIDDEN = np.float32(-np.inf)
_CHUNK_IDS = 1 << 14  # about 20 µs of work: below that, waking a thread costs more than it saves


@kernel
def _penalise(row, token_ids, counts, repetition, frequency, presence):
    for i in range(token_ids.size):
        value = row[token_ids[i]]
        value = value / repetition if value > 0 else value * repetition
        value -= frequency * np.float32(counts[i])
        if counts[i] > 0:
            value -= presence
        row[token_ids[i]] = value


@kernel
def _mask(row, words):
    """Forbids the ids whose bit is 0; bits beyond the row stand for nothing."""
    for word in range(words.size):
        if words[word] != -1:
            for bit in range(min(32, row.size - 32 * word)):
                if not (words[word] >> bit) & 1:
                    row[32 * word + bit] = _FORBIDDEN


@kernel
def _change_rows(logits, vocab, tokens, penalties, biased, ending, bitmask, start, stop):
    """Rows [start, stop). Each list is (start_loc, ids, ...); an empty bitmask stands for none."""
    token_starts, token_ids, counts = tokens
    repetition, frequency, presence = penalties
    bias_starts, bias_ids, biases = biased
    ending_starts, ending_ids = ending
    num_words = (vocab + 31) // 32
    for r in range(start, stop):
        row = logits[r * vocab : (r + 1) * vocab]
        first, end = token_starts[r], token_starts[r + 1]
        _penalise(row, token_ids[first:end], counts[first:end], repetition[r], frequency[r], presence[r])
        for i in range(bias_starts[r], bias_starts[r + 1]):
            row[bias_ids[i]] += biases[i]
        for i in range(ending_starts[r], ending_starts[r + 1]):
            row[ending_ids[i]] = _FORBIDDEN
        if bitmask.size:
            _mask(row, bitmask[r * num_words : (r + 1) * num_words])


@kernel
def _launch_change_rows(board, tape, num_items, num_chunks, *arguments):
    run_job(board, tape, job(_change_rows, arguments), num_items, num_chunks)


def apply_penalties(
    logits: Tensor,  # float32 [num_rows, vocab], changed in place
    row_start_loc: Tensor,  # int32 [num_rows + 1]
    token_ids: Tensor,  # int32 [num]
    counts: Tensor,  # int32 [num]
    repetition: Tensor,  # float32 [num_rows]
    frequency: Tensor,
    presence: Tensor,
    bias_start_loc: Tensor,  # int32 [num_rows + 1]
    bias_ids: Tensor,  # int32 [num_biases]
    biases: Tensor,  # float32 [num_biases]
    ending_start_loc: Tensor,  # int32 [num_rows + 1]
    ending_ids: Tensor,  # int32 [num_ending]
    bitmask: Tensor | None = None,  # int32 [num_rows, ceil(vocab / 32)]
) -> None:
    """Changes the logits in place; see `kernels.reference.apply_penalties` for the rule."""
    num_rows, vocab = logits.shape
    lists = (
        (flat(row_start_loc), flat(token_ids), flat(counts)),
        (flat(repetition), flat(frequency), flat(presence)),
        (flat(bias_start_loc), flat(bias_ids), flat(biases)),
        (flat(ending_start_loc), flat(ending_ids)),
    )
    words = np.empty(0, np.int32) if bitmask is None else flat(bitmask)
    per_row = (token_ids.numel() + (0 if bitmask is None else vocab)) // max(num_rows, 1)
    min_items = _CHUNK_IDS // max(per_row, 1)
    threads.run(_launch_change_rows, (flat(logits), vocab, *lists, words), num_rows, min_items=min_items)

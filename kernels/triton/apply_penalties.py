"""Penalties, logit bias and masks: what each request changes in its own row of logits, in place.

The rule is `kernels.reference.apply_penalties`. Token lists are ragged: row r owns [start_loc[r], start_loc[r + 1]).

grid      (num_rows,)
tile      IDS listed tokens: the ids, then the logits they point at; for the bitmask, words x 32 bits

          token_ids  [ row 0 ... | row 1 ....... | row 2 ]      logits[r]  . x . . x x . .  gathered, changed, scattered
          bitmask    [ word 0 | word 1 | ... ]                  logits[r]  -inf where a bit is 0; no logit is read

moves     8 bytes of list and two 32-byte sectors of logits a listed token, 4 FLOP each; vocab / 8 bytes a masked row:
          memory bound
ordered   a barrier between the steps: a token may be penalised, biased and masked, by different threads
fixed     a row is one program and an id is listed once, so a row's result depends on the row alone
idea      logits processors (repetition: Keskar et al., 2019) without a dense [num_rows, vocab] table of counts
"""

import triton
import triton.language as tl
from torch import Tensor

from kernels.triton import configs

# Slices of one buffer: their alignment varies from step to step, and must not compile anew.
_RAGGED = [
    "row_start_loc", "token_ids", "counts", "repetition", "frequency", "presence", "bias_start_loc", "bias_ids",
    "biases", "ending_start_loc", "ending_ids",
]  # fmt: skip


@triton.jit(do_not_specialize_on_alignment=_RAGGED)
def _penalties_kernel(
    logits, row_start_loc, token_ids, counts, repetition, frequency, presence, bias_start_loc, bias_ids, biases,
    ending_start_loc, ending_ids, bitmask, vocab, BITMASK: tl.constexpr, IDS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0).to(tl.int64)
    row = logits + index * vocab
    lanes = tl.arange(0, IDS)

    factor, per_count, once = tl.load(repetition + index), tl.load(frequency + index), tl.load(presence + index)
    end = tl.load(row_start_loc + index + 1)
    for start in tl.range(tl.load(row_start_loc + index), end, IDS):
        listed = start + lanes < end
        ids = tl.load(token_ids + start + lanes, mask=listed, other=0)
        count = tl.load(counts + start + lanes, mask=listed, other=0).to(tl.float32)
        value = tl.load(row + ids, mask=listed, other=0.0)
        value = tl.where(value > 0.0, tl.div_rn(value, factor), value * factor)
        value -= per_count * count
        value -= tl.where(count > 0.0, once, 0.0)
        tl.store(row + ids, value, mask=listed)
    tl.debug_barrier()

    end = tl.load(bias_start_loc + index + 1)
    for start in tl.range(tl.load(bias_start_loc + index), end, IDS):
        listed = start + lanes < end
        ids = tl.load(bias_ids + start + lanes, mask=listed, other=0)
        bias = tl.load(biases + start + lanes, mask=listed, other=0.0)
        tl.store(row + ids, tl.load(row + ids, mask=listed, other=0.0) + bias, mask=listed)
    tl.debug_barrier()

    end = tl.load(ending_start_loc + index + 1)
    for start in tl.range(tl.load(ending_start_loc + index), end, IDS):
        listed = start + lanes < end
        ids = tl.load(ending_ids + start + lanes, mask=listed, other=0)
        tl.store(row + ids, tl.full([IDS], float("-inf"), tl.float32), mask=listed)
    if BITMASK:
        num_words = tl.cdiv(vocab, 32)
        bit = tl.arange(0, 32)[None, :]
        for start in tl.range(0, num_words, WORDS):
            words = start + tl.arange(0, WORDS)
            allowed = tl.load(bitmask + index * num_words + words, mask=words < num_words, other=-1)
            ids = words[:, None] * 32 + bit
            forbidden = (((allowed[:, None] >> bit) & 1) == 0) & (ids < vocab)
            tl.store(row + ids, tl.full([WORDS, 32], float("-inf"), tl.float32), mask=forbidden)


def apply_penalties(
    logits: Tensor,  # float32 [num_rows, vocab], changed in place
    row_start_loc: Tensor,
    token_ids: Tensor,
    counts: Tensor,
    repetition: Tensor,
    frequency: Tensor,
    presence: Tensor,
    bias_start_loc: Tensor,
    bias_ids: Tensor,
    biases: Tensor,
    ending_start_loc: Tensor,
    ending_ids: Tensor,
    bitmask: Tensor | None = None,
) -> None:
    num_rows, vocab = logits.shape
    if num_rows:
        _penalties_kernel[(num_rows,)](
            logits, row_start_loc, token_ids, counts, repetition, frequency, presence, bias_start_loc, bias_ids,
            biases, ending_start_loc, ending_ids, bitmask, vocab, BITMASK=bitmask is not None,
            IDS=configs.PENALTY_IDS, WORDS=configs.PENALTY_IDS // 32, num_warps=configs.PENALTY_WARPS,
            enable_fp_fusion=True,
        )  # fmt: skip

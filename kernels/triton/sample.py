"""One token id per row of logits: temperature, top-k, top-p, min-p, Gumbel-max with a counter RNG; or the argmax.

The rule, ties included, is `kernels.reference.sample`. Every filter keeps a prefix of the ids ranked by (value
descending, id ascending), so what is kept is told by two numbers: a threshold value, and how many of the ids that
tie with it stay, lowest ids first. Top-k and top-p search for the threshold on the values' bits, two bits a
pass over the row; nothing is sorted.

grid      (num_rows,)
tile      BLOCK logits; a row passes once when unfiltered, some 18 more times for top-k or top-p, from L2 then

          logits[r]   [ block 0 | block 1 | .. | masked ]   a pass: three probes quarter what is left
          threshold   |------------------|=====|----------|   of the interval of float32's bits

moves     vocab · 4 bytes a row for greedy and unfiltered rows, some 25 integer and floating operations a logit for
          its noise: memory bound; floor = bytes / bandwidth
fixed     sums run in one order, block by block, so the result depends on the row alone
idea      Gumbel-max (Gumbel, 1954; Maddison et al., 2014): argmax(logit / T + noise) is an exact sample, with no
          normalisation and no scan; nothing is sorted, as in FlashInfer (Ye et al., 2025)
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.reference import GREEDY_TEMPERATURE
from kernels.triton import configs


@triton.jit
def mix32(h):
    """MurmurHash3's 32-bit finaliser; see kernels.reference.mix32."""
    h = h ^ (h >> 16)
    h = h * 0x85EBCA6B
    h = h ^ (h >> 13)
    h = h * 0xC2B2AE35
    return h ^ (h >> 16)


@triton.jit
def _absorb(h, word):
    return mix32((h ^ word.to(tl.uint32)) + 0x9E3779B9)


@triton.jit
def _key(start, seed, choice, position):
    h = tl.zeros([1], tl.uint32) + start
    return _absorb(_absorb(_absorb(_absorb(h, seed), seed >> 32), choice), position)


@triton.jit
def _gumbel(key0, key1, ids):
    bits = mix32(mix32(ids.to(tl.uint32) ^ key0) ^ key1)
    u = ((bits >> 9).to(tl.int32).to(tl.float32) + 0.5) * 1.1920928955078125e-07  # 2**-23
    return -tl.log(-tl.log(u))


@triton.jit
def _scaled(row, start, vocab, temperature, BLOCK: tl.constexpr):
    """logits / temperature of one block (-inf beyond the vocabulary; -0 turned into 0), and the ids."""
    ids = start + tl.arange(0, BLOCK)
    z = tl.div_rn(tl.load(row + ids, mask=ids < vocab, other=float("-inf")), temperature)
    return tl.where(z == 0.0, 0.0, z), ids


@triton.jit
def _order(z):
    """int32 that compares as the float32 does."""
    bits = z.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _weights(row, start, vocab, temperature, z_max, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """One block's scaled logits, and what each id weighs: 1, or its mass relative to the likeliest id's."""
    z, ids = _scaled(row, start, vocab, temperature, BLOCK)
    return z, tl.where(ids < vocab, 1.0, 0.0) if COUNT else tl.exp(z - z_max)


@triton.jit
def _above(row, vocab, temperature, z_max, threshold, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """How many ids, or how much mass, lie above the threshold; summed in `_search`'s order."""
    total = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, vocab, BLOCK):
        z, weight = _weights(row, start, vocab, temperature, z_max, COUNT, BLOCK)
        total += tl.where(_order(z) > threshold, weight, 0.0)
    return tl.sum(total, axis=0)


@triton.jit
def _search(row, vocab, temperature, z_max, target, low, high, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """The largest threshold in [low, high] with at least `target` at or above it; `low` must satisfy that.

    Three probes a pass quarter the interval, so 32 bits take 16 passes.
    """
    low, high = low.to(tl.int64), high.to(tl.int64)
    while low < high:
        width = high - low
        t1, t2, t3 = low + (width + 3) // 4, low + (2 * width + 3) // 4, low + (3 * width + 3) // 4
        total1 = tl.zeros([BLOCK], tl.float32)
        total2, total3 = total1, total1
        for start in tl.range(0, vocab, BLOCK):
            z, weight = _weights(row, start, vocab, temperature, z_max, COUNT, BLOCK)
            total1 += tl.where(_order(z) >= t1.to(tl.int32), weight, 0.0)
            total2 += tl.where(_order(z) >= t2.to(tl.int32), weight, 0.0)
            total3 += tl.where(_order(z) >= t3.to(tl.int32), weight, 0.0)
        if tl.sum(total3, axis=0) >= target:
            low = t3
        elif tl.sum(total2, axis=0) >= target:
            low, high = t2, t3 - 1
        elif tl.sum(total1, axis=0) >= target:
            low, high = t1, t2 - 1
        else:
            high = t1 - 1
    return low.to(tl.int32)


@triton.jit
def _largest(row, vocab, temperature, BLOCK: tl.constexpr):
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in tl.range(0, vocab, BLOCK):
        z, _ = _scaled(row, start, vocab, temperature, BLOCK)
        best = tl.maximum(best, z)
    return tl.max(best, axis=0)


@triton.jit
def _filter(row, vocab, temperature, top_k, top_p, min_p, BLOCK: tl.constexpr):
    """(threshold, ties): ids above the threshold stay, and of those on it the `ties` lowest."""
    z_max = _largest(row, vocab, temperature, BLOCK)
    lowest, highest = _order(z_max * 0.0 + float("-inf")), _order(z_max)
    threshold, ties = lowest, vocab
    if (top_k > 0) & (top_k < vocab):
        threshold = _search(row, vocab, temperature, z_max, top_k.to(tl.float32), lowest, highest, True, BLOCK)
        above = _above(row, vocab, temperature, z_max, threshold, True, BLOCK)
        ties = top_k - above.to(tl.int32)
    if top_p < 1.0:
        tie_mass = tl.exp(_value(threshold) - z_max)
        above = _above(row, vocab, temperature, z_max, threshold, False, BLOCK)
        target = top_p * (above + tl.where(tie_mass > 0.0, ties.to(tl.float32) * tie_mass, 0.0))
        if above >= target:  # the cut lies above top-k's own ties
            threshold = _search(row, vocab, temperature, z_max, target, threshold + 1, highest, False, BLOCK)
            tie_mass = tl.exp(_value(threshold) - z_max)
            above = _above(row, vocab, temperature, z_max, threshold, False, BLOCK)
            ties = vocab
        ties = tl.minimum(ties, tl.maximum(tl.ceil((target - above) / tie_mass), 1.0).to(tl.int32))
    if min_p > 0.0:
        least = _order(z_max + tl.log(min_p))
        if least > threshold:
            threshold, ties = tl.minimum(least, highest), vocab
    return threshold, ties


@triton.jit
def _value(order):
    """The float32 that `_order` maps to this int32."""
    return (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _sample_kernel(
    out, logits, temperatures, top_ks, top_ps, min_ps, seeds, choices, positions, vocab,
    GREEDY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    index = tl.program_id(0)
    row = logits + index.to(tl.int64) * vocab
    temperature = tl.load(temperatures + index)
    cold = temperature < GREEDY
    temperature = tl.where(cold, 1.0, temperature)
    top_k, top_p, min_p = tl.load(top_ks + index), tl.load(top_ps + index), tl.load(min_ps + index)
    filtered = (not cold) & ((top_k > 0) | (top_p < 1.0) | (min_p > 0.0))
    threshold, ties = -2147483647, vocab
    if filtered:
        threshold, ties = _filter(row, vocab, temperature, top_k, top_p, min_p, BLOCK)
    seed, choice, position = tl.load(seeds + index), tl.load(choices + index), tl.load(positions + index)
    key0, key1 = _key(0, seed, choice, position), _key(1, seed, choice, position)

    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_id = tl.full([BLOCK], 2147483647, tl.int32)
    ties_before = 0
    for start in tl.range(0, vocab, BLOCK):
        z, ids = _scaled(row, start, vocab, temperature, BLOCK)
        if not cold:
            z += _gumbel(key0, key1, ids)
        if filtered:
            order = _order(_scaled(row, start, vocab, temperature, BLOCK)[0])
            tied = (order == threshold).to(tl.int32)
            rank = ties_before + tl.cumsum(tied, axis=0) - tied
            z = tl.where((order > threshold) | ((order == threshold) & (rank < ties)), z, float("-inf"))
            ties_before += tl.sum(tied, axis=0)
        better = (z > best) | ((best_id == 2147483647) & (ids < vocab))
        best, best_id = tl.where(better, z, best), tl.where(better, ids, best_id)
    winner = tl.max(best, axis=0)
    token = tl.min(tl.where(best == winner, best_id, vocab - 1), axis=0)
    tl.store(out + index, token.to(tl.int64))


def sample(
    logits: Tensor,  # float32 [num_rows, vocab]
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    choices: Tensor,
    positions: Tensor,
) -> Tensor:
    num_rows, vocab = logits.shape
    out = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if num_rows:
        block = min(configs.SAMPLE_BLOCK, triton.next_power_of_2(vocab))
        _sample_kernel[(num_rows,)](
            out, logits, temperature, top_k, top_p, min_p, seeds, choices, positions, vocab,
            GREEDY=GREEDY_TEMPERATURE, BLOCK=block, num_warps=configs.SAMPLE_WARPS, enable_fp_fusion=True,
        )  # fmt: skip
    return out

"""The twins of the ops that turn logits into tokens, and the counter RNG, normative for every implementation."""

import math

import torch
from torch import Tensor

GREEDY_TEMPERATURE = 1e-5  # rows colder than this take the argmax
_MASK32 = 0xFFFFFFFF


def apply_penalties(
    logits: Tensor,  # [num_rows, vocab], changed in place
    row_start_loc: Tensor,  # [num_rows + 1]: row r owns token_ids[row_start_loc[r] : row_start_loc[r + 1]]
    token_ids: Tensor,  # [num]: tokens of prompt and output, distinct within a row
    counts: Tensor,  # [num]: times in the output; 0: in the prompt only
    repetition: Tensor,  # [num_rows]; 1: off
    frequency: Tensor,  # [num_rows]; 0: off
    presence: Tensor,  # [num_rows]; 0: off
    bias_start_loc: Tensor,  # [num_rows + 1]
    bias_ids: Tensor,  # [num_biases], distinct within a row
    biases: Tensor,  # [num_biases]
    ending_start_loc: Tensor,  # [num_rows + 1]
    ending_ids: Tensor,  # [num_ending]: may not be drawn yet
    bitmask: Tensor | None = None,  # [num_rows, ceil(vocab / 32)]: bit i of word w is set where id 32 · w + i may be
) -> None:
    """What each row's request changes in its own logits before a token is drawn, in this order.

    repetition           logit / p where positive, logit · p otherwise, for every listed token
    frequency, presence  logit - frequency · count - presence · (count > 0)
    bias                 logit + bias
    ending ids, bitmask  -inf
    """
    vocab = logits.shape[1]
    token_starts, bias_starts, ending_starts = (
        starts.tolist() for starts in (row_start_loc, bias_start_loc, ending_start_loc)
    )
    for r in range(logits.shape[0]):
        row = logits[r].double()
        own = slice(token_starts[r], token_starts[r + 1])
        ids, count = token_ids[own].long(), counts[own].double()
        value, factor = row[ids], repetition[r].double()
        value = torch.where(value > 0, value / factor, value * factor)
        row[ids] = value - frequency[r].double() * count - presence[r].double() * (count > 0)
        own = slice(bias_starts[r], bias_starts[r + 1])
        row[bias_ids[own].long()] += biases[own].double()
        row[ending_ids[ending_starts[r] : ending_starts[r + 1]].long()] = -math.inf
        if bitmask is not None:
            bits = bitmask[r, :, None] >> torch.arange(32, device=logits.device) & 1
            row[bits.flatten()[:vocab] == 0] = -math.inf
        logits[r] = row


def mix32(h: Tensor) -> Tensor:
    """MurmurHash3's 32-bit finaliser, a bijection. uint32 arithmetic, held in int64 here."""
    h = h ^ (h >> 16)
    h = (h * 0x85EBCA6B) & _MASK32
    h = h ^ (h >> 13)
    h = (h * 0xC2B2AE35) & _MASK32
    return h ^ (h >> 16)


def random_bits(seed: Tensor, choice: Tensor, position: Tensor, vocab_id: Tensor) -> Tensor:
    """The counter RNG: 32 random bits (in int64) that depend on these four integers only. Inputs broadcast.

    Normative for every implementation; all arithmetic is modulo 2**32:
        absorb(h, word) = mix32((h ^ word) + 0x9E3779B9)
        key(start)      = absorb(absorb(absorb(absorb(start, seed & 0xFFFFFFFF), seed >> 32), choice), position)
        bits            = mix32(mix32(vocab_id ^ key(0)) ^ key(1))
    seed is int64, taken as 64 raw bits (seed >> 32 is its upper half, unsigned). Two keys, because with one the
    draws of two rows whose keys differ in low bits only would be permutations of each other.
    """

    def key(start: int) -> Tensor:
        h = torch.full_like(seed, start)
        for word in (seed, seed >> 32, choice.long(), position.long()):
            h = mix32(((h ^ (word & _MASK32)) + 0x9E3779B9) & _MASK32)
        return h

    return mix32(mix32(vocab_id.long() ^ key(0)) ^ key(1))


def uniform(bits: Tensor) -> Tensor:
    """float32 in the open interval (0, 1): ((bits >> 9) + 0.5) · 2**-23.

    23 bits, not 24: with 24 the half no longer fits float32's significand and the largest value rounds to 1.
    """
    return ((bits >> 9).float() + 0.5) * 2.0**-23


def kept_ids(scaled: Tensor, top_k: int, top_p: float, min_p: float) -> Tensor:
    """bool [vocab]: the ids that one row's filters leave, given its temperature-scaled logits.

    Ids are ranked by (value descending, id ascending), so of tied values the lowest id comes first. Each filter
    keeps a prefix of that ranking; they compose in the order top_k, top_p, min_p, and rank 0 is always kept.
        top_k  the first top_k ranks (0 or less, or at least the vocabulary: off)
        top_p  rank i stays while the mass of the ranks before it is < top_p · (mass of what top_k left); 1: off
        min_p  ids with value >= largest value + log(min_p), computed in float32 (0: off)
    """
    order = torch.argsort(scaled, descending=True, stable=True)
    ranked = scaled[order]
    keep = torch.ones_like(ranked, dtype=torch.bool)
    if 0 < top_k < ranked.numel():
        keep[top_k:] = False
    if top_p < 1.0:
        mass = torch.exp((ranked - ranked[0]).double()) * keep
        keep &= mass.cumsum(0) - mass < top_p * mass.sum()
    if min_p > 0.0:
        keep &= ranked >= ranked[0] + torch.log(torch.tensor(min_p, dtype=torch.float32))
    keep[0] = True
    return torch.zeros_like(keep).scatter_(0, order, keep)


def sample(
    logits: Tensor,  # float32 [num_rows, vocab]
    temperature: Tensor,  # float32 [num_rows]
    top_k: Tensor,  # int32 [num_rows]
    top_p: Tensor,  # float32 [num_rows]
    min_p: Tensor,  # float32 [num_rows]
    seeds: Tensor,  # int64 [num_rows]
    choices: Tensor,  # int32 [num_rows]
    positions: Tensor,  # int32 [num_rows]: tokens before the sampled one
) -> Tensor:
    """One token id per row, int64 [num_rows].

    Cold rows (temperature < 1e-5) take the argmax. Others take the argmax, over the ids that the filters keep
    (`kept_ids`), of logits / temperature - log(-log(u)), u drawn per id by the counter RNG: an exact sample of
    the filtered softmax. In every argmax the lowest id wins ties. Division and sum are float32. Where the mass
    before a rank equals top_p to within rounding, implementations may differ by that rank.
    """
    ids = torch.arange(logits.shape[1], device=logits.device)
    out = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    for row in range(logits.shape[0]):
        if float(temperature[row]) < GREEDY_TEMPERATURE:
            out[row] = first_argmax(logits[row])
            continue
        scaled = logits[row] / temperature[row]
        keep = kept_ids(scaled, int(top_k[row]), float(top_p[row]), float(min_p[row]))
        u = uniform(random_bits(seeds[row], choices[row], positions[row], ids))
        noisy = scaled - torch.log(-torch.log(u.double())).float()
        out[row] = first_argmax(noisy.masked_fill(~keep, -math.inf))
    return out


def first_argmax(x: Tensor) -> Tensor:
    """The lowest index that holds the maximum (torch.argmax promises no particular one)."""
    return (x == x.max()).nonzero()[0, 0]

"""Sampling on a CPU: the filters without a sort of the vocabulary, the Gumbel draw without most of its logarithms.

Filters keep a prefix of the ranking by (value descending, id ascending). Value and id pack into one integer key whose
order is that ranking, so what a filter keeps is said by its smallest key. top_k and top_p are one rule, "a rank stays
while the weight before it is below a budget", with weight 1 or exp(value), answered by a weighted quickselect.
Before it, a floor that the answer provably does not fall below removes most of the vocabulary in one vector pass.
"""

import math

import numpy as np
import torch
from torch import Tensor

from kernels.cpu import gumbel, threads
from kernels.cpu.arrays import flat
from kernels.cpu.jit import kernel
from kernels.cpu.parallel import job, run_job
from kernels.cpu.simd import LANES, add, largest, load, maximum, splat, store, sub, total
from kernels.cpu.vector_math import exp

_GREEDY_TEMPERATURE = np.float32(1e-5)  # rows colder than this take the argmax
_SPAN = 64 * LANES  # values per step of the passes that sum or find maxima
_LAST_ID = 0x7FFFFFFF
_LEAST_BUDGET = 1e-300  # of top_p: enough for rank 0
_SLACK = np.float32(0.01)  # floors may keep too much, never too little
_ROUNDING = np.float32(1e-6)  # relative, more than a few float32 roundings


@kernel
def _key(bits, token):
    """(float32 bits of value, id) as an int64 that is larger for larger values and, among equals, for lower ids."""
    ordered = np.int64(bits) if bits >= 0 else np.int64(bits ^ 0x7FFFFFFF)
    return (ordered << 32) + (_LAST_ID - token)


@kernel
def _token(key):
    return _LAST_ID - (key & 0xFFFFFFFF)


@kernel
def _largest(x):
    whole = x.size // LANES * LANES
    lanes = splat(np.float32(-np.inf))
    for i in range(0, whole, LANES):
        lanes = maximum(load(x, i), lanes)
    top = largest(lanes)
    for i in range(whole, x.size):
        top = max(top, x[i])
    return top


@kernel
def _first(x, value):
    for i in range(x.size):
        if x[i] == value:
            return i
    return 0


@kernel
def _mass(scaled, top):
    """The sum of exp(value - top)."""
    mass = 0.0
    for start in range(0, scaled.size, _SPAN):
        lanes = splat(np.float32(0))
        for i in range(start, min(start + _SPAN, scaled.size), LANES):
            lanes = add(lanes, exp(sub(load(scaled, i), splat(top))))
        mass += total(lanes)
    return mass


@kernel
def _collect(scaled, floor, keys):
    """Writes the keys of the values at or above the floor; returns how many."""
    bits = scaled.view(np.int32)
    size = 0
    for start in range(0, scaled.size, LANES):
        if largest(load(scaled, start)) >= floor:
            for i in range(start, start + LANES):
                if scaled[i] >= floor:
                    keys[size] = _key(bits[i], i)
                    size += 1
    return size


@kernel
def _select(keys, weights, budget):
    """How many keys have less than `budget` of weight before them; moves those to the front, in no order."""
    low, high, before = 0, keys.size, 0.0
    while low < high:
        middle = (low + high) // 2
        keys[middle], keys[high - 1] = keys[high - 1], keys[middle]
        weights[middle], weights[high - 1] = weights[high - 1], weights[middle]
        pivot, place, mass = keys[high - 1], low, 0.0
        for i in range(low, high - 1):
            if keys[i] > pivot:
                mass += weights[i]
                keys[i], keys[place] = keys[place], keys[i]
                weights[i], weights[place] = weights[place], weights[i]
                place += 1
        keys[place], keys[high - 1] = keys[high - 1], keys[place]
        weights[place], weights[high - 1] = weights[high - 1], weights[place]
        if before + mass < budget:  # the pivot stays
            before += mass + weights[place]
            low = place + 1
        else:
            high = place
    return low


@kernel
def _top_k_floor(scaled, top_k, keys, weights):
    """The top_k-th of the maxima of disjoint sets: at least top_k values are not below it."""
    maxima = np.empty((scaled.size + _SPAN - 1) // _SPAN * LANES, np.float32)
    if maxima.size < top_k:
        return np.float32(-np.inf)
    for span in range(maxima.size // LANES):
        lanes = splat(np.float32(-np.inf))
        for i in range(span * _SPAN, min((span + 1) * _SPAN, scaled.size), LANES):
            lanes = maximum(load(scaled, i), lanes)
        store(maxima, span * LANES, lanes)
    bits = maxima.view(np.int32)
    for i in range(maxima.size):
        keys[i], weights[i] = _key(bits[i], i), 1
    _select(keys[: maxima.size], weights, np.float64(top_k))
    lowest = keys[0]
    for i in range(1, top_k):
        lowest = min(lowest, keys[i])
    return maxima[_token(lowest)]


@kernel
def _filter(scaled, vocab, top, bound, top_k, top_p, log_min_p, keys, weights):
    """Writes the keys that top_k, top_p and min_p keep, in that order, in front of `keys`; returns how many.

    Keys that cannot reach `bound` with any noise may be missing.
    """
    size = -1
    if 0 < top_k < vocab:
        size = _collect(scaled, _top_k_floor(scaled, top_k, keys, weights), keys)
        weights[:size] = 1
        size = _select(keys[:size], weights, np.float64(top_k))
    if top_p < 1:
        mass = 0.0
        if size < 0:  # less than 1 - top_p of the mass lies below (1 - top_p) * (mean mass)
            mass = _mass(scaled, top)
            floor = top + np.float32(math.log((1.0 - top_p) * mass / vocab)) - _SLACK
            size = _collect(scaled, min(floor, top), keys)
        partial = 0.0
        for i in range(size):
            weights[i] = math.exp(np.float64(scaled[_token(keys[i])] - top))
            partial += weights[i]
        size = _select(keys[:size], weights, max(np.float64(top_p) * max(mass, partial), _LEAST_BUDGET))
    floor = min(top, top + log_min_p)
    if size < 0:
        noise_floor = bound - gumbel.HIGHEST - _SLACK - abs(bound) * _ROUNDING
        return _collect(scaled, max(floor, noise_floor), keys)
    kept = 0
    for i in range(size):
        if scaled[_token(keys[i])] >= floor:
            keys[kept] = keys[i]
            kept += 1
    return kept


@kernel
def _draw(scaled, keys, first, bound, key0, key1, least_bits):
    """The id of the largest value plus noise; the lowest id wins ties. `bound` is that sum for id `first`."""
    best, chosen = bound, first
    for key in keys:
        token = _token(key)
        bits = gumbel.draw_bits(token, key0, key1)
        gap = best - scaled[token] - _SLACK - abs(best) * _ROUNDING  # the variate must be larger
        if gap > 0 and bits < least_bits[min(np.int64(gap * gumbel.STEPS), least_bits.size - 1)]:
            continue
        value = gumbel.noisy(scaled[token], bits)
        if value > best or (value == best and token < chosen):
            best, chosen = value, token
    return chosen


@kernel
def _sample_rows(logits, vocab, temperature, filters, counters, out, start, stop):
    """Rows [start, stop). Scratch is padded with -inf to whole vectors."""
    top_k, top_p, log_min_p = filters
    seeds, choices, positions = counters
    scaled = np.full((vocab + LANES - 1) // LANES * LANES, -np.inf, np.float32)
    keys, weights = np.empty(scaled.size, np.int64), np.empty(scaled.size, np.float64)
    least_bits = gumbel.least_bits_table()
    for row in range(start, stop):
        values = logits[row * vocab : (row + 1) * vocab]
        top = _largest(values)
        if temperature[row] < _GREEDY_TEMPERATURE or not np.isfinite(top):
            out[row] = _first(values, top)
            continue
        for i in range(vocab):
            scaled[i] = values[i] / temperature[row] + np.float32(0)  # -0 becomes 0: they rank as equals
        top = _largest(scaled)
        first = _first(scaled, top)
        key0 = gumbel.row_key(0, seeds[row], choices[row], positions[row])
        key1 = gumbel.row_key(1, seeds[row], choices[row], positions[row])
        bound = gumbel.noisy(top, gumbel.draw_bits(first, key0, key1))  # rank 0 is always kept
        size = _filter(scaled, vocab, top, bound, top_k[row], top_p[row], log_min_p[row], keys, weights)
        out[row] = _draw(scaled, keys[:size], first, bound, key0, key1, least_bits)


@kernel
def _launch_sample_rows(board, tape, num_items, num_chunks, *arguments):
    run_job(board, tape, job(_sample_rows, arguments), num_items, num_chunks)


def sample(
    logits: Tensor,  # float32 [num_rows, vocab]
    temperature: Tensor,  # float32 [num_rows]; below 1e-5: greedy
    top_k: Tensor,  # int32 [num_rows]; 0: off
    top_p: Tensor,  # float32 [num_rows]; 1: off
    min_p: Tensor,  # float32 [num_rows]; 0: off
    seeds: Tensor,  # int64 [num_rows]
    choices: Tensor,  # int32 [num_rows]
    positions: Tensor,  # int32 [num_rows]
) -> Tensor:
    """One token id per row, int64 [num_rows]; see `kernels.reference.sample` for the rule."""
    num_rows, vocab = logits.shape
    out = torch.empty(num_rows, dtype=torch.int64)
    filters = (top_k.numpy(), top_p.numpy(), torch.log(min_p).numpy())
    counters = (seeds.numpy(), choices.long().numpy(), positions.long().numpy())
    arguments = (flat(logits), vocab, temperature.numpy(), filters, counters, out.numpy())
    threads.run(_launch_sample_rows, arguments, num_rows)
    return out

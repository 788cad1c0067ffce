"""The counter RNG of `kernels.reference.random_bits` and the Gumbel variates made of it."""

import math

import numpy as np

from kernels.cpu.jit import kernel

HIGHEST = np.float32(16.7)  # no variate reaches it: -log(-log(u)) is 16.64 for the largest u, 1 - 2**-24
STEPS = 8  # entries of the table per unit
_MASK32 = 0xFFFFFFFF


@kernel
def _mix32(h):
    """MurmurHash3's finaliser on 32 bits held in an int64; products are masked, so their overflow is harmless."""
    h ^= h >> 16
    h = (h * 0x85EBCA6B) & _MASK32
    h ^= h >> 13
    h = (h * 0xC2B2AE35) & _MASK32
    return h ^ (h >> 16)


@kernel
def row_key(start, seed, choice, position):
    h = np.int64(start)
    for word in (seed, seed >> 32, choice, position):
        h = _mix32(((h ^ (word & _MASK32)) + 0x9E3779B9) & _MASK32)
    return h


@kernel
def draw_bits(token, key0, key1):
    """23 random bits; a variate grows with them."""
    return _mix32(_mix32(token ^ key0) ^ key1) >> 9


@kernel
def noisy(value, bits):
    """value plus the Gumbel variate of u = (bits + 0.5) · 2**-23."""
    return np.float32(value - np.float32(math.log(-math.log((bits + 0.5) * 2.0**-23))))


@kernel
def least_bits_table():
    """[j]: fewer bits than this give a variate below j / STEPS."""
    table = np.empty(np.int64(HIGHEST * STEPS) + 1, np.int64)
    for j in range(table.size):
        table[j] = np.int64(math.exp(-math.exp(-j / STEPS)) * 2.0**23) - 1
    return table

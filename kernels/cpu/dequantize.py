"""Blocks of quantised weights to float32: formats of ggml, to the bit what the `gguf` package makes of them.

A block is 32 or 256 values of a row that share scales. Integers are taken apart in 32 bits, where all shifts are exact;
the products are float32's own, none of them fused.

q4_0   scale; 16 bytes of two values: those in the low nibbles come first                         value - 8
q5_0   scale; 32 fifth bits; 16 bytes as in q4_0                                                  value - 16
q8_0   scale; 32 signed bytes
q4_k   scale and least value; 12 bytes with 6 bits of each for 8 groups of 32; 128 bytes, of which 32 hold two groups
q5_k   as q4_k, with 32 bytes of fifth bits before the 128: a bit in each byte for each group
q6_k   128 bytes of low nibbles, 64 of upper bit pairs, 16 signed scales of groups of 16, scale     value - 32
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kernels.cpu.jit import kernel
from kernels.cpu.simd import half_to_float

Bytes = NDArray[np.uint8]

# Indices without a sign: numba then has no negative ones to look out for, and LLVM makes vectors of the loops.
_U = np.uint64


@kernel
def _half(block, at):
    """The float16 at block[at : at + 2]."""
    return half_to_float(np.uint16(block[_U(at)]) | np.uint16(np.uint16(block[_U(at + 1)]) << np.uint16(8)))


@kernel
def _word(block, at):
    """The 32 bits at block[at : at + 4]."""
    word = np.uint32(0)
    for i in range(4):
        word |= np.uint32(block[_U(at + i)]) << np.uint32(8 * i)
    return word


@kernel
def _q4_0(raw, values, start, stop):
    for number in range(start, stop):
        block, out = raw[18 * number : 18 * number + 18], values[32 * number : 32 * number + 32]
        scale, pairs = _half(block, 0), block[2:18]
        for i in range(16):
            pair = np.uint32(pairs[_U(i)])
            out[_U(i)] = scale * np.float32(np.int32(pair & np.uint32(15)) - np.int32(8))
            out[_U(i + 16)] = scale * np.float32(np.int32(pair >> np.uint32(4)) - np.int32(8))


@kernel
def _q5_0(raw, values, start, stop):
    for number in range(start, stop):
        block, out = raw[22 * number : 22 * number + 22], values[32 * number : 32 * number + 32]
        scale, fifths, pairs = _half(block, 0), _word(block, 2), block[6:22]
        for i in range(16):
            pair, shift = np.uint32(pairs[_U(i)]), np.uint32(i)
            low = (pair & np.uint32(15)) | (((fifths >> shift) & np.uint32(1)) << np.uint32(4))
            high = (pair >> np.uint32(4)) | (((fifths >> (shift + np.uint32(16))) & np.uint32(1)) << np.uint32(4))
            out[_U(i)] = scale * np.float32(np.int32(low) - np.int32(16))
            out[_U(i + 16)] = scale * np.float32(np.int32(high) - np.int32(16))


@kernel
def _q8_0(raw, values, start, stop):
    for number in range(start, stop):
        block, out = raw[34 * number : 34 * number + 34], values[32 * number : 32 * number + 32]
        scale, steps = _half(block, 0), block[2:34].view(np.int8)
        for i in range(32):
            out[_U(i)] = scale * np.float32(steps[_U(i)])


@kernel
def _scale_and_least(packed, group):
    """The six bits of each that a group of q4_k and q5_k has."""
    if group < 4:
        return packed[_U(group)] & np.uint8(63), packed[_U(group + 4)] & np.uint8(63)
    both = packed[_U(group + 4)]
    scale = (both & np.uint8(15)) | ((packed[_U(group - 4)] >> np.uint8(2)) & np.uint8(48))
    least = (both >> np.uint8(4)) | ((packed[_U(group)] >> np.uint8(2)) & np.uint8(48))
    return scale, least


@kernel
def _q4_k(raw, values, start, stop):
    for number in range(start, stop):
        block, out = raw[144 * number : 144 * number + 144], values[256 * number : 256 * number + 256]
        of_scales, of_least, packed = _half(block, 0), _half(block, 2), block[4:16]
        for group in range(8):
            scale_bits, least_bits = _scale_and_least(packed, group)
            scale, least = of_scales * np.float32(scale_bits), of_least * np.float32(least_bits)
            first, shift = 16 + 32 * (group >> 1), np.uint32(4 * (group & 1))
            pairs, row = block[first : first + 32], out[32 * group : 32 * group + 32]
            for i in range(32):
                row[_U(i)] = scale * np.float32((np.uint32(pairs[_U(i)]) >> shift) & np.uint32(15)) - least


@kernel
def _q5_k(raw, values, start, stop):
    for number in range(start, stop):
        block, out = raw[176 * number : 176 * number + 176], values[256 * number : 256 * number + 256]
        of_scales, of_least, packed, fifths = _half(block, 0), _half(block, 2), block[4:16], block[16:48]
        for group in range(8):
            scale_bits, least_bits = _scale_and_least(packed, group)
            scale, least = of_scales * np.float32(scale_bits), of_least * np.float32(least_bits)
            first, shift, fifth = 48 + 32 * (group >> 1), np.uint32(4 * (group & 1)), np.uint32(group)
            pairs, row = block[first : first + 32], out[32 * group : 32 * group + 32]
            for i in range(32):
                low = (np.uint32(pairs[_U(i)]) >> shift) & np.uint32(15)
                high = ((np.uint32(fifths[_U(i)]) >> fifth) & np.uint32(1)) << np.uint32(4)
                row[_U(i)] = scale * np.float32(low | high) - least


@kernel
def _q6_k(raw, values, start, stop):
    for number in range(start, stop):
        block, out = raw[210 * number : 210 * number + 210], values[256 * number : 256 * number + 256]
        of_scales, scales = _half(block, 208), block[192:208].view(np.int8)
        for group in range(16):
            half, quarter, begin = group >> 3, (group >> 1) & 3, 16 * (group & 1)
            low_at, high_at = 64 * half + 32 * (quarter & 1) + begin, 128 + 32 * half + begin
            lows, highs = block[low_at : low_at + 16], block[high_at : high_at + 16]
            low_shift, high_shift = np.uint32(4 * (quarter >> 1)), np.uint32(2 * quarter)
            scale, row = of_scales * np.float32(scales[_U(group)]), out[16 * group : 16 * group + 16]
            for i in range(16):
                low = (np.uint32(lows[_U(i)]) >> low_shift) & np.uint32(15)
                high = ((np.uint32(highs[_U(i)]) >> high_shift) & np.uint32(3)) << np.uint32(4)
                row[_U(i)] = scale * np.float32(np.int32(low | high) - np.int32(32))


_KERNELS: dict[str, tuple[Callable[..., None], int, int]] = {  # format -> kernel, values and bytes of a block
    "Q4_0": (_q4_0, 32, 18),
    "Q5_0": (_q5_0, 32, 22),
    "Q8_0": (_q8_0, 32, 34),
    "Q4_K": (_q4_k, 256, 144),
    "Q5_K": (_q5_k, 256, 176),
    "Q6_K": (_q6_k, 256, 210),
}
FORMATS = frozenset(_KERNELS)


def dequantize(raw: Bytes, name: str) -> NDArray[np.float32]:
    """The values [num_blocks · values of a block] of whole blocks of the format `name`. Runs without the lock."""
    run, num_values, num_bytes = _KERNELS[name]
    num_blocks = raw.size // num_bytes
    values = np.empty(num_blocks * num_values, np.float32)
    blocks = raw.reshape(-1)
    blocks.flags.writeable = False         # as a file's are: one compiled form
    run(blocks, values, 0, num_blocks)
    return values

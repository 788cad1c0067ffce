"""Pure-torch twins of every op: the truth that tests and benches compare against.

Everything is computed in float64, whatever the inputs, and rounded once to the output's dtype.
Slow and plain on purpose: loops over requests and rows, no tricks. Signatures are those of `kernels.ops`.
"""

from kernels.reference.attention import paged_attention, varlen_attention, visible_keys
from kernels.reference.cache import copy_blocks, rope_and_cache_write, rotate, swap_blocks, to_cache_dtype
from kernels.reference.layers import add_rms_norm, gelu_and_mul, layer_norm, rms_norm, silu_and_mul
from kernels.reference.sampling import (
    GREEDY_TEMPERATURE,
    apply_penalties,
    first_argmax,
    kept_ids,
    mix32,
    random_bits,
    sample,
    uniform,
)

__all__ = [
    "GREEDY_TEMPERATURE",
    "add_rms_norm",
    "apply_penalties",
    "copy_blocks",
    "first_argmax",
    "gelu_and_mul",
    "kept_ids",
    "layer_norm",
    "mix32",
    "paged_attention",
    "random_bits",
    "rms_norm",
    "rope_and_cache_write",
    "rotate",
    "sample",
    "silu_and_mul",
    "swap_blocks",
    "to_cache_dtype",
    "uniform",
    "varlen_attention",
    "visible_keys",
]

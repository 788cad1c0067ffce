"""RMS norm, with and without the residual sum, and layer norm on a CPU: one pass for the statistics, one to write.

Sums run in 16 float32 lanes joined in one fixed order, so a row's bits depend on that row only.
"""

import numpy as np
from torch import Tensor

from kernels.cpu import threads
from kernels.cpu.arrays import flat, optional
from kernels.cpu.jit import kernel
from kernels.cpu.parallel import job, run_job
from kernels.cpu.recording import empty_tensor
from kernels.cpu.simd import LANES, fma, load, splat, sub, total

_CHUNK_ELEMENTS = 1 << 15  # about 10 µs of work: below that, waking a thread costs more than it saves


@kernel
def sum_of_squares(x, centre):
    """The sum of (x - centre)² over a 1-D array."""
    whole = x.size // LANES * LANES
    lanes = splat(np.float32(0))
    for i in range(0, whole, LANES):
        offset = sub(load(x, i), splat(centre))
        lanes = fma(offset, offset, lanes)
    result = total(lanes)
    for i in range(whole, x.size):
        result += (x[i] - centre) * (x[i] - centre)
    return result


@kernel
def _sum(x):
    whole = x.size // LANES * LANES
    lanes = splat(np.float32(0))
    for i in range(0, whole, LANES):
        lanes = fma(load(x, i), splat(np.float32(1)), lanes)
    result = total(lanes)
    for i in range(whole, x.size):
        result += x[i]
    return result


@kernel
def scale_to_unit_rms(x, weight, plus, eps, out):
    """out = x / rms(x) * (weight + plus), for 1-D arrays; out may be x."""
    inverse = np.float32(1) / np.sqrt(sum_of_squares(x, np.float32(0)) / np.float32(x.size) + eps)
    for i in range(x.size):
        out[i] = x[i] * inverse * (weight[i] + plus)


@kernel
def _rms_rows(x, residual, weight, plus, eps, out, start, stop):
    """Rows [start, stop); an empty residual stands for none."""
    width = weight.size
    for row in range(start, stop):
        source = x[row * width : (row + 1) * width]
        if residual.size:
            summed = residual[row * width : (row + 1) * width]
            for i in range(width):
                summed[i] += source[i]
            source = summed
        scale_to_unit_rms(source, weight, plus, eps, out[row * width : (row + 1) * width])


@kernel
def _launch_rms_rows(board, tape, num_items, num_chunks, *arguments):
    run_job(board, tape, job(_rms_rows, arguments), num_items, num_chunks)


@kernel
def _layer_norm_rows(x, weight, bias, eps, out, start, stop):
    width = weight.size
    for row in range(start, stop):
        source, target = x[row * width : (row + 1) * width], out[row * width : (row + 1) * width]
        mean = _sum(source) / np.float32(width)
        inverse = np.float32(1) / np.sqrt(sum_of_squares(source, mean) / np.float32(width) + eps)
        for i in range(width):
            target[i] = (source[i] - mean) * inverse * weight[i]
        if bias.size:
            for i in range(width):
                target[i] += bias[i]


@kernel
def _launch_layer_norm_rows(board, tape, num_items, num_chunks, *arguments):
    run_job(board, tape, job(_layer_norm_rows, arguments), num_items, num_chunks)


def _rms(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, one_plus: bool) -> Tensor:
    out = empty_tensor(x.shape)
    summed = np.empty(0, np.float32) if residual is None else flat(residual)  # written to, so never a copy
    arguments = (flat(x), summed, optional(weight), np.float32(one_plus), np.float32(eps), flat(out))
    threads.run(_launch_rms_rows, arguments, x.shape[0], min_items=_CHUNK_ELEMENTS // weight.shape[0])
    return out


def rms_norm(x: Tensor, weight: Tensor, eps: float, one_plus: bool = False) -> Tensor:
    """x / rms(x) · weight (or 1 + weight) for x [num_tokens, hidden]."""
    return _rms(x, None, weight, eps, one_plus)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, one_plus: bool = False) -> Tensor:
    """residual += x in place; returns the RMS norm of that sum, for x and residual [num_tokens, hidden]."""
    return _rms(x, residual, weight, eps, one_plus)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """(x - mean) / sqrt(variance + eps) · weight + bias for x [num_tokens, hidden]."""
    out = empty_tensor(x.shape)
    arguments = (flat(x), optional(weight), optional(bias), np.float32(eps), flat(out))
    threads.run(_launch_layer_norm_rows, arguments, x.shape[0], min_items=_CHUNK_ELEMENTS // weight.shape[0])
    return out

"""RMS norm over the hidden dimension, alone or fused with the residual addition before it.

y = x / sqrt(mean(x²) + eps) · weight, or · (1 + weight) in Gemma's form; statistics in float32.

grid      (num_tokens,)
tile      one row, padded to a power of two, held in registers between the statistics and the scaling

          x[r]         [ ........ hidden ........ | 0 ]  ->  Σ x²  ->  out[r]
          residual[r]  [ ......... += x ......... | 0 ]     read and written in the same pass, where there is one

moves     2 · hidden · bytes_per_element a row, with the residual 4; 4 FLOP a channel: memory bound,
          floor = bytes / bandwidth
fixed     a row is one program, so its result never depends on the other rows
idea      RMSNorm (Zhang and Sennrich, 2019); one program a row, as in Triton's layer-norm tutorial
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton import configs


@triton.jit
def _rms_norm_kernel(
    out, x, residual, weight, eps, hidden, ADD: tl.constexpr, ONE_PLUS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * hidden
    columns = tl.arange(0, BLOCK)
    inside = columns < hidden
    wide = tl.load(x + row + columns, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        wide += tl.load(residual + row + columns, mask=inside, other=0.0).to(tl.float32)
        rounded = wide.to(residual.dtype.element_ty)
        tl.store(residual + row + columns, rounded, mask=inside)
        wide = rounded.to(tl.float32)  # the norm of what the next layer will read, not of the unrounded sum
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / hidden + eps)
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    if ONE_PLUS:
        gain += 1.0
    tl.store(out + row + columns, (wide * scale * gain).to(out.dtype.element_ty), mask=inside)


def _launch(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float, one_plus: bool) -> Tensor:
    out = torch.empty_like(x)
    num_tokens, hidden = x.shape
    if num_tokens:
        block = triton.next_power_of_2(hidden)
        _rms_norm_kernel[(num_tokens,)](
            out, x, residual, weight, eps, hidden, ADD=residual is not None, ONE_PLUS=one_plus, BLOCK=block,
            num_warps=configs.row_warps(block), enable_fp_fusion=True,
        )  # fmt: skip
    return out


def rms_norm(x: Tensor, weight: Tensor, eps: float, one_plus: bool = False) -> Tensor:
    return _launch(x, None, weight, eps, one_plus)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, one_plus: bool = False) -> Tensor:
    return _launch(x, residual, weight, eps, one_plus)

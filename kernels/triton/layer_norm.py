"""Layer norm over the hidden dimension (OPT, GPT-2, NeoX).

y = (x - mean(x)) / sqrt(var(x) + eps) · weight + bias; statistics in float32, variance of the centred row.

grid      (num_tokens,)
tile      one row, padded to a power of two, held in registers: mean, then variance, then the scaling

          x[r]  [ ........ hidden ........ | 0 ]  ->  mean  ->  Σ (x - mean)²  ->  out[r]

moves     2 · hidden · bytes_per_element a row, 7 FLOP a channel: memory bound; floor = bytes / bandwidth
fixed     a row is one program, so its result never depends on the other rows
idea      layer normalisation (Ba et al., 2016); one program a row, as in Triton's layer-norm tutorial
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton import configs


@triton.jit
def _layer_norm_kernel(out, x, weight, bias, eps, hidden, BIAS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * hidden
    columns = tl.arange(0, BLOCK)
    inside = columns < hidden
    wide = tl.load(x + row + columns, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(wide, axis=0) / hidden
    centred = tl.where(inside, wide - mean, 0.0)  # the padding would add mean² to the variance
    scale = tl.rsqrt(tl.sum(centred * centred, axis=0) / hidden + eps)
    y = centred * scale * tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        y += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row + columns, y.to(out.dtype.element_ty), mask=inside)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    out = torch.empty_like(x)
    num_tokens, hidden = x.shape
    if num_tokens:
        block = triton.next_power_of_2(hidden)
        _layer_norm_kernel[(num_tokens,)](
            out, x, weight, bias, eps, hidden, BIAS=bias is not None, BLOCK=block,
            num_warps=configs.row_warps(block), enable_fp_fusion=True,
        )  # fmt: skip
    return out

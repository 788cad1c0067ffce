"""Activations of gated MLPs: act(gate) · up, read from the packed output of one fused projection.

grid      (num_tokens, blocks of the width)
tile      ACTIVATION_BLOCK channels of one row; float32 inside

          gate_up[r]  [ gate 0 | gate 1 | .. | up 0 | up 1 | .. ]   one program reads gate b and up b,
          out[r]      [ out 0  | out 1  | .. ]                      and writes out b, masked at the width

moves     3 · width · bytes_per_element a row, some 10 FLOP a channel: memory bound; floor = bytes / bandwidth
idea      gated linear units (Shazeer, 2020), fused with the product as in Megatron-LM
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton import configs


@triton.jit
def _activation_kernel(out, gate_up, width, KIND: tl.constexpr, BLOCK: tl.constexpr):
    row, columns = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    gate = tl.load(gate_up + row * 2 * width + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + columns, mask=inside, other=0.0).to(tl.float32)
    if KIND == "silu":
        gate = gate / (1.0 + tl.exp(-gate))
    elif KIND == "gelu_tanh":  # 0.5 · (1 + tanh(z)) = sigmoid(2z)
        z = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        gate = gate / (1.0 + tl.exp(-2.0 * z))
    else:
        gate = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    tl.store(out + row * width + columns, (gate * up).to(out.dtype.element_ty), mask=inside)


def _launch(gate_up: Tensor, kind: str) -> Tensor:
    num_tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((num_tokens, width), dtype=gate_up.dtype, device=gate_up.device)
    if out.numel():
        block = min(configs.ACTIVATION_BLOCK, triton.next_power_of_2(width))
        _activation_kernel[(num_tokens, triton.cdiv(width, block))](
            out, gate_up, width, KIND=kind, BLOCK=block, num_warps=4, enable_fp_fusion=True
        )
    return out


def silu_and_mul(gate_up: Tensor) -> Tensor:
    return _launch(gate_up, "silu")


def gelu_and_mul(gate_up: Tensor, approximate: str) -> Tensor:
    return _launch(gate_up, "gelu_tanh" if approximate == "tanh" else "gelu_erf")

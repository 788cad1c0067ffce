"""The twins of the norms and activations."""

import torch
from torch import Tensor


def rms(x: Tensor, weight: Tensor, eps: float, one_plus: bool) -> Tensor:
    """The RMS norm in float64."""
    wide = x.double()
    normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return normed * (weight.double() + 1.0 if one_plus else weight.double())


def rms_norm(x: Tensor, weight: Tensor, eps: float, one_plus: bool = False) -> Tensor:
    """x / rms(x) · weight over the last dimension; Gemma's form multiplies by 1 + weight."""
    return rms(x, weight, eps, one_plus).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, one_plus: bool = False) -> Tensor:
    """residual += x in place, rounded to its dtype; returns the RMS norm of the rounded sum."""
    residual.copy_(residual.double() + x.double())
    return rms(residual, weight, eps, one_plus).to(x.dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    """(x - mean) / sqrt(variance + eps) · weight + bias over the last dimension."""
    centred = x.double() - x.double().mean(dim=-1, keepdim=True)
    normed = centred * torch.rsqrt(centred.square().mean(dim=-1, keepdim=True) + eps) * weight.double()
    return (normed if bias is None else normed + bias.double()).to(x.dtype)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) · up, for gate_up [num_tokens, 2 · width] holding the gate first."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(gate_up.dtype)


def gelu_and_mul(gate_up: Tensor, approximate: str) -> Tensor:
    """gelu(gate) · up, for gate_up [num_tokens, 2 · width]; approximate is "tanh" or "none" (erf)."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    return (torch.nn.functional.gelu(gate, approximate=approximate) * up).to(gate_up.dtype)

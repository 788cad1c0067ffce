"""The feed-forward branch of a layer, gated or plain."""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.model.layers.linear import Linear
from engine.model.spec import Activation
from kernels import ops


def _in_float64(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """`activation`, rounded alike by a CPU's vector and scalar code, whatever a row's neighbours are."""
    return lambda x: activation(x.double()).to(x.dtype) if x.device.type == "cpu" else activation(x)


GATED: Mapping[Activation, Callable[[Tensor], Tensor]] = {  # [num_tokens, 2 · inner], the gate first -> […, inner]
    "silu": ops.silu_and_mul,
    "gelu": lambda gate_up: ops.gelu_and_mul(gate_up, "none"),
    "gelu_tanh": lambda gate_up: ops.gelu_and_mul(gate_up, "tanh"),
}
PLAIN: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "silu": _in_float64(F.silu),
    "gelu": _in_float64(F.gelu),
    "gelu_tanh": _in_float64(lambda x: F.gelu(x, approximate="tanh")),
    "tanh": _in_float64(torch.tanh),
}


class MLP:
    def __init__(self, up: Linear, down: Linear, activation: Callable[[Tensor], Tensor]) -> None:
        self.up, self.down, self._activation = up, down, activation  # `up` holds gate and up rows where it is gated

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self._activation(self.up(x)))

"""The feed-forward branch of a layer, gated or plain."""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from engine.model.layers.linear import Linear
from engine.model.spec import Activation


def _in_float64(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """`activation`, rounded alike by a CPU's vector and scalar code, whatever a row's neighbours are."""
    return lambda x: activation(x.double()).to(x.dtype) if x.device.type == "cpu" else activation(x)


PLAIN: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "silu": _in_float64(F.silu),
    "gelu": _in_float64(F.gelu),
    "gelu_tanh": _in_float64(lambda x: F.gelu(x, approximate="tanh")),
    "tanh": _in_float64(torch.tanh),
}


class MLP:
    def __init__(self, inner: Linear, down: Linear) -> None:
        self.inner, self.down = inner, down            # `inner` ends with the activation, and with what it gates

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(self.inner(x))

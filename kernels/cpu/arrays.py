"""Views of torch tensors that numba kernels index by hand.

Every kernel takes contiguous 1-D arrays and strides: one compiled form whatever the layout of a tensor, so a view of
packed QKV and a tensor of its own go through the same instructions.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def flat(tensor: Tensor) -> NDArray[Any]:
    """The tensor's memory from its first element to its last, as one 1-D array that shares it."""
    if tensor.is_floating_point() and tensor.dtype != torch.float32:
        raise ValueError(f"CPU kernels compute in float32, got {tensor.dtype}")
    if tensor.is_contiguous():
        return tensor.detach().numpy().reshape(-1)
    length = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.detach().as_strided((length if tensor.numel() else 0,), (1,)).numpy()


def optional(tensor: Tensor | None) -> NDArray[np.float32]:
    """A float32 parameter as an array, empty where there is none."""
    return np.empty(0, np.float32) if tensor is None else flat(tensor.float().contiguous())

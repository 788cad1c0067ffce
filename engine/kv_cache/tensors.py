"""The storage of keys and values: two tensors a layer, cut into blocks that block tables name."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from engine.model.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class KVCacheTensors:
    keys: tuple[Tensor, ...]       # a layer each: [num_blocks, block_size, num_kv_heads, head_dim]
    values: tuple[Tensor, ...]

    @classmethod
    def allocate(
        cls, spec: "ModelSpec", num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device | str
    ) -> "KVCacheTensors":
        """Zeroed storage: attention multiplies unwritten slots by zero, which must not be NaN."""
        shape = (num_blocks, block_size, spec.num_kv_heads, spec.head_dim)
        keys, values = (
            tuple(_zeros(shape, dtype, torch.device(device)) for _ in range(spec.num_layers)) for _ in range(2)
        )
        return cls(keys, values)

    @property
    def block_size(self) -> int:
        return self.keys[0].shape[1]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type == "cpu" and dtype is torch.float32:
        return torch.from_numpy(np.zeros(shape, np.float32))   # unlike torch's, takes memory only as it is written
    return torch.zeros(shape, dtype=dtype, device=device)


def kv_bytes_per_token(spec: "ModelSpec", dtype: torch.dtype) -> int:
    return 2 * spec.num_layers * spec.kv_size * dtype.itemsize

"""Dtypes: in what form weights, activations and keys and values are held."""

import platform
from dataclasses import dataclass
from typing import Literal

import torch

from engine.config import DtypeName
from engine.errors import ConfigError

WeightDtype = Literal["float32", "float16", "bfloat16", "int8"]
_TORCH: dict[WeightDtype, torch.dtype] = {
    "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Dtypes:
    weights: WeightDtype       # of the products
    table: torch.dtype         # of the embedding tables
    activations: torch.dtype
    kv_cache: torch.dtype


def resolve_dtypes(dtype: DtypeName, device: str, checkpoint_dtype: str | None, *, causal: bool = True) -> Dtypes:
    """The dtypes that the configuration's `dtype` means on `device` ("cpu" or "cuda…").

    An encoder's products have many rows, so that reading narrow weights saves it next to nothing on a CPU; and its
    vectors are compared by their last digits, of which float16 has three bits more than bfloat16. A processor that
    does not multiply bfloat16 computes the same bits, as fast as it would with float16: replicas on different ones
    agree.
    """
    half: WeightDtype = "float16" if checkpoint_dtype == "float16" or not causal else "bfloat16"
    if device == "cpu":
        narrow = causal and platform.machine() == "x86_64"
        return _on_cpu(dtype if dtype != "auto" else half if narrow else "float32")
    if dtype == "auto":
        dtype = half
    if dtype not in _TORCH:
        raise ConfigError(f"dtype: {dtype} is not available on {device}; available: {', '.join(_TORCH)}")
    return Dtypes(dtype, *(_TORCH[dtype],) * 3)


def _on_cpu(dtype: WeightDtype) -> Dtypes:
    table = torch.float32 if dtype == "float32" else torch.float16
    return Dtypes(dtype, table, activations=torch.float32, kv_cache=torch.float32)

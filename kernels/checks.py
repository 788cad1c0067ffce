"""Checks on the tensors of an op: each failure is a ValueError that names the argument, the need and the fact."""

import torch
from torch import Tensor

ACTIVATION_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2)
CACHE_DTYPES = (*ACTIVATION_DTYPES, *FP8_DTYPES)
INDEX_DTYPES = (torch.int32, torch.int64)


def tensor(
    name: str,
    value: Tensor,
    shape: tuple[int | None, ...],  # None: any size
    dtypes: torch.dtype | tuple[torch.dtype, ...],
    like: Tensor,  # the tensor whose device it must share
    contiguous: bool = True,
) -> None:
    """One argument's shape, dtype, device and layout; a non-contiguous one still needs stride 1 in its last dim."""
    if value.dim() != len(shape) or any(w not in (None, got) for w, got in zip(shape, value.shape, strict=True)):
        wanted = ", ".join("*" if size is None else str(size) for size in shape)
        raise ValueError(f"{name} must have shape [{wanted}], got {list(value.shape)}")
    if value.dtype != dtypes and not (isinstance(dtypes, tuple) and value.dtype in dtypes):
        wanted = " or ".join(map(str, dtypes)) if isinstance(dtypes, tuple) else str(dtypes)
        raise ValueError(f"{name} must be {wanted}, got {value.dtype}")
    if value.device != like.device:
        raise ValueError(f"{name} must be on {like.device}, got {value.device}")
    if contiguous:
        if not value.is_contiguous():
            raise ValueError(f"{name} must be contiguous, got strides {value.stride()} for shape {list(value.shape)}")
    elif value.shape[-1] > 1 and value.stride(-1) != 1:
        raise ValueError(f"{name} must have stride 1 in its last dimension, got strides {value.stride()}")


def kv_caches(key_cache: Tensor, value_cache: Tensor, like: Tensor, head_dim: int) -> None:
    """Both caches: [num_blocks, block_size, num_kv_heads, head_dim], contiguous, of like's dtype or an FP8 one."""
    tensor("key_cache", key_cache, (None, None, None, head_dim), (like.dtype, *FP8_DTYPES), like)
    tensor("value_cache", value_cache, tuple(key_cache.shape), key_cache.dtype, like)


def positive(name: str, value: float) -> None:
    if not value > 0:
        raise ValueError(f"{name} must be positive, got {value}")


def not_negative(**values: float) -> None:
    if any(value < 0 for value in values.values()):
        raise ValueError("none may be negative: " + ", ".join(f"{name}={value}" for name, value in values.items()))

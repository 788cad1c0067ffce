"""What the processor can do, as the compiler of the CPU kernels sees it."""

import functools

from llvmlite import binding
from numba.core import config


@functools.cache
def has(feature: str) -> bool:
    """Whether kernels may use an LLVM target feature: avx2, avx512vnni, f16c, …"""
    chosen: str | None = getattr(config, "CPU_FEATURES")  # noqa: B009 - the user's own choice, which the compiler obeys
    if chosen is not None:
        return f"+{feature}" in chosen.split(",")
    return bool(binding.get_host_cpu_features().get(feature, False))

"""What the processor can do, as the compiler of the CPU kernels sees it."""

import functools

from llvmlite.binding import get_host_cpu_name
from numba.core import codegen, config


@functools.cache
def _features() -> frozenset[str]:
    """LLVM target features, each with its sign: the user's choice, or the host's but what numba is to avoid."""
    chosen: str | None = getattr(config, "CPU_FEATURES")  # noqa: B009 - it has no static attribute of this name
    return frozenset((codegen.get_host_cpu_features() if chosen is None else chosen).split(","))


def has(feature: str) -> bool:
    """Whether kernels may use an LLVM target feature: avx2, avx512vnni, f16c, …"""
    return f"+{feature}" in _features()


def name() -> str:
    """LLVM's name of the processor: znver4, emeraldrapids, …; the user's choice, or the host's."""
    chosen: str | None = getattr(config, "CPU_NAME")  # noqa: B009
    return get_host_cpu_name() if chosen is None else chosen

"""How CPU kernels are compiled: at first use, kept on disk by numba, run without the interpreter's lock.

Division follows IEEE, not Python: a zero divisor gives infinity or NaN in its own row and raises nothing. No fastmath:
sums run in the order that is written, and NaN stays NaN.
"""

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit


@functools.cache
def _folder_digest() -> str:
    sources = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()


def kernel(function: Callable[..., Any]) -> Any:
    """The decorator of every kernel.

    numba looks at a kernel's own file to tell whether what it has kept on disk is still right, but compiled code holds
    that of the other files of this folder too: all of them are made part of the stamp.
    """
    compiled = njit(nogil=True, cache=True, error_model="numpy")(function)
    kept = compiled._cache._cache_file  # type: ignore[attr-defined]
    kept._source_stamp = (kept._source_stamp, _folder_digest())
    return compiled

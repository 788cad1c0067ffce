"""How CPU kernels are compiled: at first use, kept on disk by numba, run without the interpreter's lock.

Division follows IEEE, not Python: a zero divisor gives infinity or NaN in its own row and raises nothing. No fastmath:
sums run in the order that is written, and NaN stays NaN.
"""

from functools import partial
from typing import Any

from numba import njit

kernel: Any = partial(njit, nogil=True, cache=True, error_model="numpy")

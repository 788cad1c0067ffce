"""The C library's heap: what is freed stays with the process until it is told to give it back."""

import ctypes


def give_back_freed_memory() -> None:
    """For after work that took far more memory than what it leaves; does nothing where the library has no such call."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)

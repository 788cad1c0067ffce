"""Kernel tests run Triton's interpreter on CPU tensors, every address checked: no GPU, no compiler."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")  # read once, when Triton is first imported

import pytest
import triton.language
from triton.runtime.interpreter import InterpretedFunction

from kernels.testing import bounds_checked, products_alike

if not isinstance(triton.language.sum, InterpretedFunction):
    raise RuntimeError("Triton was imported before TRITON_INTERPRET=1 was set; set it in the first conftest.py")


@pytest.fixture(autouse=True)
def strict_interpreter():
    """An interpreted kernel may touch its own arguments only, and has the same bits on every processor."""
    with bounds_checked(), products_alike():
        yield

"""Tests on a card: `pytest tests/gpu`. Collected everywhere; without a card each is skipped, with the reason.

The other tests run Triton's kernels in its interpreter, which is decided once a process. A session that begins here,
on a machine with a card, compiles them instead; in a session that begins elsewhere these tests are skipped.
"""

import os
import sys
from pathlib import Path

import pytest

CARD = any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists() or Path("/dev/dxg").exists()

if CARD and "triton" not in sys.modules:
    os.environ["TRITON_INTERPRET"] = "0"


def obstacle() -> str | None:
    """Why kernels cannot run on a card in this session."""
    if not CARD:
        return "this machine has no GPU"
    import torch
    import triton.language
    from triton.runtime.interpreter import InterpretedFunction

    if not torch.cuda.is_available():
        return "torch finds no usable GPU"
    if isinstance(triton.language.sum, InterpretedFunction):
        return "this session interprets Triton's kernels; run `pytest tests/gpu` by itself"
    return None


@pytest.fixture(scope="session", autouse=True)
def device():
    import torch

    if (reason := obstacle()) is not None:
        pytest.skip(reason)
    return torch.device("cuda", 0)

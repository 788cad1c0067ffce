"""Where a step's intermediate results lie while it is computed kernel by kernel.

Not its logits: few rows of a step have them, and the address space of all would be more than small machines grant.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch

_MAX_ROWS = 2048  # of a step on a CPU; larger ones ask the system for memory


def workspace_of(device: torch.device) -> Callable[[], AbstractContextManager[None]]:
    """What to compute a step in: on a CPU memory of its own, on a GPU torch's allocator keeps what it has."""
    if device.type != "cpu":
        return nullcontext
    from kernels.cpu.recording import Workspace, working_in

    return partial(working_in, Workspace(_MAX_ROWS))

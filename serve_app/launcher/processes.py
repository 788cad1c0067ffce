"""The launcher's process tree: all that it started, however deep, ends with it, and nothing else does."""

import contextlib
import ctypes
import os
import signal
import sys
import time

import psutil

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent dies, so that `end_descendants` finds them."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def follow_parent(parent_pid: int, number: signal.Signals) -> None:
    """Have the kernel send this process `number` when its parent dies; end at once if it already has."""
    _prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent_pid:
        os._exit(1)


def end_descendants(*, timeout_s: float = 5.0) -> list[int]:
    """Kill every descendant, again and again until none is left; returns the pids that outlived `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while True:
        _reap()
        left = psutil.Process().children(recursive=True)
        if not left or time.monotonic() > deadline:
            return [process.pid for process in left]
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.02)


def end_children(program: str) -> None:
    """Kill the children of this process that run the file `program`, a name without its folder."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if any(os.path.basename(word) == program for word in child.cmdline()):
                child.kill()
                child.wait(timeout=5)                # or it would stay as a zombie


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _prctl(option: int, argument: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, argument, 0, 0, 0)

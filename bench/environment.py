"""Where and with what a figure was measured: commit, machine, versions, command."""

import importlib.metadata
import os
import platform
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
_PACKAGES = ("torch", "triton", "transformers", "ray", "numba", "numpy", "aiohttp")


def environment() -> dict[str, Any]:
    """All that a published figure carries beside workload and seed, ready for JSON."""
    return {
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
    }


def commit() -> str | None:
    """The commit of the working tree, marked where files differ from it; None outside a repository."""
    described = _first_line("git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    return described or None


def machine() -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "gpu": _first_line("nvidia-smi", "--query-gpu=name", "--format=csv,noheader") or None,
        "load_average": round(os.getloadavg()[0], 2),   # before the run: tells a busy machine
    }


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _cpu_model() -> str:
    """The processor's name with family and model: hypervisors shorten the name until it tells nothing."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.processor() or platform.machine()
    lines = [line.partition(":") for line in cpuinfo.read_text().partition("\n\n")[0].splitlines()]
    first = {key.strip(): value.strip() for key, _, value in lines}
    numbers = ", ".join(f"{key} {first[key]}" for key in ("cpu family", "model") if key in first)
    return f"{first.get('model name', platform.machine())} ({numbers})"


def _first_line(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip().partition("\n")[0] if done.returncode == 0 else ""

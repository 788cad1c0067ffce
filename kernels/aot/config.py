"""All that `kernels.aot` reads of the environment."""

import os
from collections.abc import Mapping
from pathlib import Path


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Where figures and triton wheels are kept: below $CONVEYOR_CACHE, else below the user's cache directory."""
    base = environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(environ.get("CONVEYOR_CACHE") or Path(base) / "conveyor") / "aot"


def compiler_environment(*python_path: Path, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a process that compiles, with `python_path` before all else that it imports from.

    A process that interprets Triton cannot compile it, so the switch is left out.
    """
    paths = [*map(str, python_path), *filter(None, [environ.get("PYTHONPATH")])]
    kept = {name: value for name, value in environ.items() if name not in ("TRITON_INTERPRET", "PYTHONPATH")}
    return kept | ({"PYTHONPATH": os.pathsep.join(paths)} if paths else {})

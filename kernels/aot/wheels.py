"""A triton version of one's choice, beside the installed one: fetched once, unpacked into the cache."""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


def fetch(version: str, directory: Path) -> Path:
    """The folder to put on PYTHONPATH."""
    target = directory / f"triton-{version}"
    if target.is_dir():
        return target
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", scratch,
             "--disable-pip-version-check", "--quiet", f"triton=={version}"],
            check=True,
        )  # fmt: skip
        (wheel,) = Path(scratch).glob("*.whl")
        unpack(wheel, Path(scratch) / "unpacked")
        shutil.move(Path(scratch) / "unpacked", target)
    return target


def unpack(wheel: Path, target: Path) -> None:
    """Extracts a wheel; zipfile drops permissions, and the assemblers must run."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    for tool in target.glob("triton/backends/*/bin/*"):
        tool.chmod(0o755)

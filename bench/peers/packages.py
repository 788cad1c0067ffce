"""What each peer needs beyond our own packages, installed by the benchmark into a folder of the peer's own."""

import hashlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from engine.config import cache_directory

PEERS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "transformers_static": ("accelerate==1.15.0",),    # transformers asks for it to read a .gguf file
})


class PeerFailed(Exception):
    """A peer cannot be installed, does not start or ends before its time; its own words are on standard error."""


def packages_of(peer: str) -> Path:
    """The folder that holds the peer's packages, without their dependencies; filled at first use."""
    requirements = PEERS[peer]
    version = hashlib.sha256("\n".join(requirements).encode()).hexdigest()[:12]
    folder = cache_directory() / "bench" / f"{peer}-{version}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as unfinished:
            target = Path(unfinished) / "packages"
            install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target)]
            if subprocess.run([*install, *requirements], stdout=sys.stderr).returncode:
                raise PeerFailed(f"{', '.join(requirements)} for peer {peer} could not be installed")
            target.rename(folder)
    return folder

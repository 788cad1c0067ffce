"""The kernels as the compiler sees them: types, spills, shared memory, machine code. No GPU takes part.

The gates run as a program of their own, because a process that interprets Triton cannot compile it. What was compiled
before, from the same source, is read from the user's cache.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from kernels.aot import config, wheels


def run_gates(*options):
    """What `python -m kernels.aot` prints; fails with its complaints."""
    done = subprocess.run(
        [sys.executable, "-m", "kernels.aot", *options],
        cwd=Path(__file__).parents[2], env=config.compiler_environment(), capture_output=True, text=True,
    )  # fmt: skip
    complaints = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert done.returncode == 0, "\n".join(complaints) or done.stderr[-3000:]
    return done.stdout


def test_every_kernel_passes_its_gates_where_it_is_hardest():
    lines = run_gates("--quick").splitlines()
    kernels = {line.split(" · ")[2].split()[0] for line in lines if line.startswith(("sm_", "gfx"))}
    assert kernels == {
        "decode", "extend", "reduce_splits", "varlen", "rope", "rms_norm", "layer_norm", "activation", "sample", "copy",
        "penalties",
    }  # fmt: skip


@pytest.mark.exhaustive
def test_every_launch_of_every_model_passes_its_gates():
    run_gates()


@pytest.mark.exhaustive
@pytest.mark.parametrize("version", ["3.6.0", "3.9.0"])
def test_other_versions_of_triton_compile_what_is_hardest(version):
    """The oldest that we take and the newest that there was; the locked one is what the other tests run."""
    try:
        wheels.fetch(version, config.cache_directory() / "wheels")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"triton {version} cannot be had: {error}")
    assert f"triton {version}:" in run_gates("--triton", version, "--quick")

"""What the interpreter cannot see: the kernels pass the compiler's type checks, and fit the machines they are for."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EVERYTHING = {"window": 100, "softcap": 5.0, "alibi": True, "sinks": True}
MODELS = [
    {"head_dim": 64, "group": 7, "page": 16},  # Qwen2.5 0.5B
    {"head_dim": 64, "group": 8, "window": 128, "sinks": True},  # gpt-oss
    {"head_dim": 80, "group": 1},  # Phi-2
    {"head_dim": 96, "group": 1, "window": 2047},  # Phi-3 mini
    {"head_dim": 128, "group": 4},  # Llama 3 8B
    {"head_dim": 128, "group": 4, "page": 16, "window": 4096},  # Mistral
    {"head_dim": 128, "group": 1, "page": 1, "alibi": True},  # BLOOM
    {"head_dim": 192, "group": 4},
    {"head_dim": 256, "group": 2, "window": 4096, "softcap": 50.0},  # Gemma 2
]


def compile_ahead(mode, arch, *variants):
    """The compiler's findings, one dict a launch."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.compile_ahead", mode, arch, *map(json.dumps, variants)],
        cwd=Path(__file__).parents[2], env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_kernel_passes_the_front_end():
    found = {launch["kernel"] for launch in compile_ahead("ttir", "sm_90", {"head_dim": 80}, EVERYTHING)}
    assert found == {
        "_decode_kernel", "_extend_kernel", "_reduce_splits", "_rope_kernel", "_rms_norm_kernel", "_layer_norm_kernel",
        "_activation_kernel", "_sample_kernel", "_varlen_kernel", "_copy_kernel", "_penalties_kernel",
    }  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100", "gfx942"])
@pytest.mark.parametrize("options", MODELS, ids=json.dumps)
def test_no_kernel_spills_or_asks_for_more_shared_memory_than_there_is(arch, options):
    for launch in compile_ahead("full", arch, options):
        assert launch["spilled_bytes"] == 0, launch
        assert launch["shared_room_bytes"] >= 0, launch

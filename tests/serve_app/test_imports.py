"""Libraries that a start would wait for, once in each of Serve's processes."""

import subprocess
import sys

import pytest

HEAVY = {"torch", "transformers", "numba", "llvmlite", "llguidance", "gguf", "scipy", "pandas", "matplotlib"}


@pytest.mark.parametrize(
    "module", ["serve_app.app", "serve_app.ingress", "serve_app.llm_server", "serve_app.launcher.cluster"]
)
def test_a_process_without_an_engine_loads_nothing_of_one(module):
    code = f"import sys, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())

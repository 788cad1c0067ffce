"""What a start must not wait for."""

import subprocess
import sys


def modules_after(code):
    listing = "import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{listing}"], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_transformers_is_not_imported_before_a_model_needs_it():
    assert "transformers" not in modules_after("import engine.build, engine.model.families.gguf")

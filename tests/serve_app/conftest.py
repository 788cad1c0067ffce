import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiny_tokenizer import write_tiny_tokenizer


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a tokenizer and a configuration, but no weights: all that the ingress reads."""
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONVEYOR_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield folder

"""From the configuration's `model` to files: demo, minilm, a Hugging Face id, a local folder or a .gguf file.

Or to no file at all: `random:<shape>` is a model of random weights.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.config import cache_directory, hugging_face_token
from engine.errors import ConfigError
from engine.model.shapes import PREFIX, SHAPES, shape_name

DEMO = "demo"
MINILM = "minilm"
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_WANTED = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")
_UNWANTED = ("consolidated*", "original/*", "onnx/*")  # other forms of the same weights


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    kind: Literal["folder", "gguf", "random"]
    path: Path               # of a random one: `random:<shape>`, which names no file
    name: str                # what clients call it unless told otherwise


def resolve(model: str) -> ResolvedModel:
    """Where `model` lies on this machine, fetched first if need be. Raises ConfigError naming model, path and cause."""
    if model == DEMO:
        from engine.model import demo

        return ResolvedModel("gguf", demo.fetch(cache_directory()), demo.NAME)
    if model == MINILM:
        from engine.model import minilm

        return ResolvedModel("folder", minilm.fetch(cache_directory()), minilm.NAME)
    if (shape := shape_name(model)) is not None:
        if shape not in SHAPES:
            known = ", ".join(PREFIX + name for name in SHAPES)
            raise ConfigError(f"model: {model}: there is no shape '{shape}' for random weights; known: {known}")
        return ResolvedModel("random", Path(model), model)
    path = Path(model).expanduser()
    if path.suffix == ".gguf" and (path.exists() or not _HUB_ID.fullmatch(model)):
        if not path.is_file():
            raise ConfigError(f"model: {model}: there is no file {path.absolute()}")
        return ResolvedModel("gguf", path, path.stem)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ConfigError(f"model: {model}: folder {path.absolute()} holds no config.json")
        return ResolvedModel("folder", path, path.absolute().name)
    if path.exists():
        raise ConfigError(f"model: {model}: {path.absolute()} is neither a folder nor a .gguf file")
    if not _HUB_ID.fullmatch(model):
        raise ConfigError(
            f"model: {model}: there is no folder {path.absolute()}, and this is not a Hugging Face id (owner/name); "
            f"for a first try use 'demo'"
        )
    return ResolvedModel("folder", _download(model), model)


def _download(model: str) -> Path:
    """A snapshot without pickles, in the hub client's own cache."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        return Path(_snapshot(model))
    except GatedRepoError as error:
        raise ConfigError(f"model: {model} is gated on Hugging Face: accept its terms and set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        raise ConfigError(
            f"model: there is no folder {Path(model).absolute()} and no Hugging Face model {model} that you may read"
        ) from error
    except Exception as error:  # the client raises errors of several HTTP libraries; all mean "could not be had"
        cause = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ConfigError(
            f"model: there is no folder {Path(model).absolute()}, and {model} could not be fetched from Hugging Face: "
            f"{cause}"
        ) from error


def _snapshot(model: str) -> str:
    from huggingface_hub import snapshot_download

    path: str = snapshot_download(
        model, allow_patterns=list(_WANTED), ignore_patterns=list(_UNWANTED), token=hugging_face_token()
    )
    return path

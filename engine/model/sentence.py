"""SentenceSpec: how an encoder's hidden states become one vector, by the model's own sentence-transformers files.

A folder without such files is read as sentence-transformers reads it: the mean of all tokens, not normalised.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from engine.errors import ConfigError

Pooling = Literal["cls", "max", "mean", "mean_sqrt_len", "last"]
DenseActivation = Literal["identity", "tanh", "relu", "gelu"]

# Key of a pooling configuration -> ours, in the order in which vectors of several poolings are joined.
_POOLINGS: Mapping[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_lasttoken": "last",
}
_BY_NAME: Mapping[str, Pooling] = {**{name: name for name in _POOLINGS.values()}, "lasttoken": "last"}
_ACTIVATIONS: Mapping[str, DenseActivation] = {"Identity": "identity", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu"}
_NO_LIMIT = 10**6                     # tokenizers write 1e30 where they know none
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DenseSpec:
    """A layer on the pooled vector; its tensors `linear.weight` and `linear.bias` lie in a folder of their own."""

    folder: Path
    in_size: int
    out_size: int
    bias: bool
    activation: DenseActivation


@dataclass(frozen=True, slots=True)
class SentenceSpec:
    pooling: tuple[Pooling, ...] = ("mean",)
    dense: tuple[DenseSpec, ...] = ()
    normalize: bool = False
    max_length: int | None = None     # tokens of a text, as its makers set it; None: as many as the model takes

    def vector_size(self, hidden_size: int) -> int:
        return self.dense[-1].out_size if self.dense else len(self.pooling) * hidden_size


def read_sentence_spec(folder: Path, hidden_size: int) -> SentenceSpec:
    """Raises ConfigError for a file that cannot be read, and for what it may ask and we do not have."""
    max_length = _max_length(folder)
    modules = _read(folder / "modules.json", [])
    pooling: tuple[Pooling, ...] = ("mean",)
    dense: list[DenseSpec] = []
    normalize = False
    for module in modules:
        kind, path = str(module["type"]).rsplit(".", 1)[-1], folder / module["path"]
        if normalize or kind not in ("Transformer", "Pooling", "Dense", "Normalize"):
            after = " after Normalize" if normalize else ""
            raise ConfigError(f"model: {folder / 'modules.json'}: a module {kind}{after} is not supported")
        if kind == "Pooling":
            pooling = _pooling(path / "config.json")
        elif kind == "Dense":
            dense.append(_dense(path))
        normalize = kind == "Normalize"
    _warn_of_prompt(folder)
    spec = SentenceSpec(pooling, tuple(dense), normalize, max_length)
    size = SentenceSpec(pooling).vector_size(hidden_size)
    for layer in dense:
        if layer.in_size != size:
            raise ConfigError(f"model: {layer.folder} takes {layer.in_size} numbers; the module before gives {size}")
        size = layer.out_size
    return spec


def _pooling(path: Path) -> tuple[Pooling, ...]:
    config = _read(path)
    named = config.get("pooling_mode")
    asked = [named] if isinstance(named, str) else list(named or ())
    if not asked:
        asked = [key for key, is_set in config.items() if key.startswith("pooling_mode_") and is_set]
    known = {**_POOLINGS, **_BY_NAME}
    unknown = [name for name in asked if name not in known]
    if unknown or not asked:
        raise ConfigError(
            f"model: {path}: pooling {', '.join(map(str, unknown)) or 'of no kind'} is not supported; supported: "
            f"{', '.join(_POOLINGS)}"
        )
    chosen = {known[name] for name in asked}
    return tuple(kind for kind in _POOLINGS.values() if kind in chosen)


def _dense(folder: Path) -> DenseSpec:
    config = _read(folder / "config.json")
    name = str(config.get("activation_function", "Identity")).rsplit(".", 1)[-1]
    if name not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise ConfigError(f"model: {folder}: activation '{name}' is not supported; supported: {known}")
    return DenseSpec(
        folder, int(config["in_features"]), int(config["out_features"]), bool(config.get("bias", True)),
        _ACTIVATIONS[name],
    )  # fmt: skip


def _max_length(folder: Path) -> int | None:
    config: dict[str, Any] = {}
    for path in sorted(folder.glob("sentence_*_config.json")):    # sentence_bert_config.json, and older names of it
        config = _read(path)
        if config.get("do_lower_case"):
            raise ConfigError(f"model: {path}: do_lower_case is not supported; the tokenizer is to do it")
    length = config.get("max_seq_length") or _read(folder / "tokenizer_config.json", {}).get("model_max_length")
    return int(length) if length and length < _NO_LIMIT else None


def _warn_of_prompt(folder: Path) -> None:
    """Clients send whole texts; a prompt that sentence-transformers would put before each of them is theirs to send."""
    config = _read(folder / "config_sentence_transformers.json", {})
    name = config.get("default_prompt_name")
    if name:
        prompt = (config.get("prompts") or {}).get(name, "")
        _log.warning("this model expects %r before every text; clients have to send it", prompt)


def _read(path: Path, default: Any = None) -> Any:
    """The file's JSON; `default`, if there is one, for a file that does not exist."""
    if default is not None and not path.exists():
        return default
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"model: {path} cannot be read: {error}") from error

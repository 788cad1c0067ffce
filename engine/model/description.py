"""ModelDescription: all that can be known of a model before a single weight is read."""

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.model.dtypes import Dtypes, resolve_dtypes
from engine.model.families import FAMILIES, family_of
from engine.model.hub import ResolvedModel
from engine.model.names import WeightNames
from engine.model.random_weights import RandomSource, shape_config
from engine.model.sentence import SentenceSpec, read_sentence_spec
from engine.model.spec import ModelSpec
from engine.model.weights.safetensors import SafetensorsSource
from engine.model.weights.source import TensorSource
from engine.model.weights.split import SplitSource
from engine.outputs import Task


@dataclass(frozen=True, slots=True)
class ModelDescription:
    resolved: ResolvedModel
    spec: ModelSpec
    dtypes: Dtypes
    device: torch.device
    max_model_len: int                # of the engine: the model's own, or less where the configuration says so
    hf_config: Any
    generation_config: Any            # transformers GenerationConfig, or None
    names: WeightNames
    source: TensorSource
    sentence: SentenceSpec | None = None   # of an encoder that gives vectors; None: a decoder or a cross-encoder

    @property
    def task(self) -> Task:
        if self.spec.causal:
            return "generate"
        return "score" if self.sentence is None else "embed"

    def eos_token_ids(self, of_tokenizer: Collection[int] = ()) -> frozenset[int]:
        return eos_token_ids(self.hf_config, self.generation_config, of_tokenizer)


def describe_model(resolved: ResolvedModel, config: EngineConfig, device: str) -> ModelDescription:
    """Reads configs and file headers. Raises ConfigError if this model cannot be served as configured."""
    source: TensorSource
    sentence: SentenceSpec | None = None
    if resolved.kind == "gguf":
        from engine.model.families.gguf import open_gguf  # needs packages that the other kinds do without
        from engine.model.weights.gguf_file import GGUFFile

        model = open_gguf(GGUFFile(resolved.path))
        hf_config, generation_config = model.config, None
        spec, names, source = model.spec, model.names, model.source
    elif resolved.kind == "random":
        hf_config, generation_config = shape_config(str(resolved.path)), None
        family = family_of(hf_config.architectures, resolved.name)
        spec, names = family.spec(hf_config), family.names
        used = resolve_dtypes(config.dtype, device, spec.checkpoint_dtype, causal=spec.causal)
        source = RandomSource(
            spec, names, resolved.name, seed=config.seed, device=torch.device(device), dtype=used.activations
        )
    else:
        hf_config = _read_config(resolved, config.trust_remote_code)
        family = family_of(hf_config.architectures, str(resolved.path))
        generation_config = _read_generation_config(resolved)
        spec, names, source = family.spec(hf_config), family.names, SafetensorsSource(resolved.path)
        if family.splits:
            source = SplitSource(source, family.splits)
        if not spec.causal and spec.score_head is None:
            sentence = read_sentence_spec(resolved.path, spec.hidden_size)
    return ModelDescription(
        resolved, spec, resolve_dtypes(config.dtype, device, spec.checkpoint_dtype, causal=spec.causal),
        torch.device(device), _engine_context(spec, sentence, config.max_model_len), hf_config, generation_config,
        names, source, sentence,
    )  # fmt: skip


def eos_token_ids(config: Any, generation_config: Any, of_tokenizer: Collection[int] = ()) -> frozenset[int]:
    """Every id that ends a generation, by any of the three: each is wrong alone in some published model."""
    ids = set(of_tokenizer)
    for source in (config, config.get_text_config(), generation_config):
        value: int | Iterable[int] | None = getattr(source, "eos_token_id", None)
        ids.update([value] if isinstance(value, int) else value or ())
    return frozenset(ids)


def _engine_context(spec: ModelSpec, sentence: SentenceSpec | None, max_model_len: int | None) -> int:
    if max_model_len is not None and max_model_len > spec.max_model_len:
        raise ConfigError(f"max_model_len: {max_model_len} exceeds the model's context of {spec.max_model_len} tokens")
    default = sentence.max_length if sentence is not None else None
    return max_model_len or min(default or spec.max_model_len, spec.max_model_len)


def _read_config(resolved: ResolvedModel, trust_remote_code: bool) -> Any:
    path = resolved.path / "config.json"
    try:
        raw = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"model: {path} cannot be read: {error}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"model: {path} does not hold a JSON object")
    if not set(raw.get("architectures") or ()) & set(FAMILIES):
        family_of(raw.get("architectures"), str(path))  # raises; before transformers can object to the model type
    if raw.get("quantization_config"):
        method = raw["quantization_config"].get("quant_method", "of an unnamed method")
        raise ConfigError(f"model: {path}: weights are quantised ({method}), which only GGUF files may be")
    from transformers import AutoConfig  # a GGUF file does without, and starts seconds sooner

    try:
        return AutoConfig.from_pretrained(resolved.path, trust_remote_code=trust_remote_code)
    except Exception as error:  # validation errors of several libraries; all mean that the file is not usable
        raise ConfigError(f"model: {path} is not a usable configuration: {error}") from error


def _read_generation_config(resolved: ResolvedModel) -> Any:
    if not (resolved.path / "generation_config.json").is_file():
        return None
    from transformers import GenerationConfig

    try:
        return GenerationConfig.from_pretrained(resolved.path)
    except Exception as error:
        raise ConfigError(f"model: {resolved.path / 'generation_config.json'} is not usable: {error}") from error

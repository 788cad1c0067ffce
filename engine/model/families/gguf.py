"""The GGUF architectures: metadata to a transformers config, tensor names, and what the conversion did to tensors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from engine.errors import ConfigError
from engine.model.families import FAMILIES
from engine.model.names import WeightNames
from engine.model.spec import ModelSpec
from engine.model.weights.gguf import Array, GGUFSource, dequantize
from engine.model.weights.gguf_file import GGUFFile

_SCALED_FREQUENCIES = "rope_freqs.weight"  # divisors of the unscaled inverse frequencies (Llama 3.1 and later)
_LONG_FACTORS, _SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"

_NAMES = {
    "embedding": "token_embd",
    "attention_norm": "blk.{layer}.attn_norm",
    "attention.q": "blk.{layer}.attn_q",
    "attention.k": "blk.{layer}.attn_k",
    "attention.v": "blk.{layer}.attn_v",
    "attention.output": "blk.{layer}.attn_output",
    "mlp_norm": "blk.{layer}.ffn_norm",
    "mlp.gate": "blk.{layer}.ffn_gate",
    "mlp.up": "blk.{layer}.ffn_up",
    "mlp.down": "blk.{layer}.ffn_down",
    "final_norm": "output_norm",
    "lm_head": "output",
}
_GEMMA3_NAMES = {
    **_NAMES,
    "attention.q_norm": "blk.{layer}.attn_q_norm",
    "attention.k_norm": "blk.{layer}.attn_k_norm",
    "attention_post_norm": "blk.{layer}.post_attention_norm",
    "mlp_post_norm": "blk.{layer}.post_ffw_norm",
}
_UNUSED = (r"^rope_(freqs|factors_long|factors_short)\.weight$",)


@dataclass(frozen=True, slots=True)
class GGUFModel:
    """All of a GGUF file but its tokenizer."""

    config: Any                  # the transformers config that the metadata amount to, or what a spec reads of it
    spec: ModelSpec
    names: WeightNames
    source: GGUFSource


def open_gguf(file: GGUFFile) -> GGUFModel:
    architecture = str(file.metadata.get("general.architecture"))
    if architecture not in _ARCHITECTURES:
        raise ConfigError(
            f"model: {file.path}: architecture {architecture} is not supported; "
            f"supported in GGUF files: {', '.join(sorted(_ARCHITECTURES))}"
        )
    if file.metadata.get("split.count", 0) > 1:
        raise ConfigError(f"model: {file.path} is one of {file.metadata['split.count']} parts; merge them first")
    known = _ARCHITECTURES[architecture]
    try:
        config = known.config(_Metadata(file))
        spec = FAMILIES[known.family].spec(config)
    except ConfigError:
        raise
    except Exception as error:   # validation errors of several libraries; all mean that the header is not usable
        raise ConfigError(f"model: {file.path}: not the metadata of a {architecture} model: {error!r}") from error
    spec = _with_scaled_frequencies(spec, file)
    source = GGUFSource(file, partial(known.restore, config), known.is_changed)
    return GGUFModel(config, spec, WeightNames(known.names, unused=_UNUSED), source)


class _Metadata:
    """A file's metadata under their architecture's prefix."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self._prefix = file.metadata["general.architecture"]

    def __getitem__(self, key: str) -> Any:
        return self.file.metadata[f"{self._prefix}.{key}"]

    def get(self, key: str, default: Any = None) -> Any:
        return self.file.metadata.get(f"{self._prefix}.{key}", default)

    @property
    def head_dim(self) -> int:
        return int(self.get("attention.key_length") or self["embedding_length"] // self["attention.head_count"])

    def common(self) -> dict[str, Any]:
        """Arguments that all configs share."""
        if self.get("expert_count"):
            raise ConfigError(f"model: {self.file.path} is a mixture of experts, which is not supported")
        special = self.file.metadata
        ends = [special.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
        heads = self["attention.head_count"]
        return {
            "vocab_size": self.file.tensors["token_embd.weight"].shape[0],
            "hidden_size": self["embedding_length"],
            "intermediate_size": self["feed_forward_length"],
            "num_hidden_layers": self["block_count"],
            "num_attention_heads": heads,
            "num_key_value_heads": self.get("attention.head_count_kv", heads),
            "max_position_embeddings": self["context_length"],
            "rms_norm_eps": self["attention.layer_norm_rms_epsilon"],
            "tie_word_embeddings": "output.weight" not in self.file.tensors,
            "bos_token_id": special.get("tokenizer.ggml.bos_token_id"),
            "eos_token_id": sorted({end for end in ends if end is not None}) or None,
        }

    def rope_parameters(self) -> dict[str, Any]:
        """Raises ConfigError for a rotation that the families do not have."""
        if self.get("rope.dimension_count", self.head_dim) != self.head_dim:
            raise ConfigError(f"model: {self.file.path} rotates part of each head only, which is not supported")
        parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": self.get("rope.freq_base", 10000.0)}
        scaling = self.get("rope.scaling.type", "none")
        factor = self.get("rope.scaling.factor") or self.get("rope.scale_linear")
        original = self.get("rope.scaling.original_context_length") or self["context_length"]
        if scaling == "yarn":
            if not factor:
                raise ConfigError(f"model: {self.file.path} has rope scaling 'yarn' without rope.scaling.factor")
            optional = {
                "attention_factor": self.get("rope.scaling.attn_factor"),
                "beta_fast": self.get("rope.scaling.yarn_beta_fast"),
                "beta_slow": self.get("rope.scaling.yarn_beta_slow"),
            }
            parameters |= {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
            parameters |= {key: value for key, value in optional.items() if value is not None}
        elif scaling == "longrope":
            long_factor, short_factor = (dequantize(self.file, name) for name in (_LONG_FACTORS, _SHORT_FACTORS))
            parameters |= {"rope_type": "longrope", "original_max_position_embeddings": original}
            parameters |= {"long_factor": long_factor.tolist(), "short_factor": short_factor.tolist()}
            if self.get("rope.scaling.attn_factor") is not None:
                parameters["attention_factor"] = self.get("rope.scaling.attn_factor")
        elif scaling in ("linear", "none"):
            if factor and factor != 1.0:  # a factor without a type means linear
                parameters |= {"rope_type": "linear", "factor": factor}
        else:
            raise ConfigError(f"model: {self.file.path}: rope scaling '{scaling}' is not supported")
        return parameters


def _with_scaled_frequencies(spec: ModelSpec, file: GGUFFile) -> ModelSpec:
    if _SCALED_FREQUENCIES not in file.tensors:
        return spec
    divisors = dequantize(file, _SCALED_FREQUENCIES).tolist()
    rope, *others = spec.ropes
    if others or len(divisors) != len(rope.inv_freq):
        raise ConfigError(
            f"model: {file.path}: {_SCALED_FREQUENCIES} has {len(divisors)} divisors; this architecture has "
            f"{' and '.join(str(len(one.inv_freq)) for one in spec.ropes)} frequencies"
        )
    inv_freq = tuple(value / divisor for value, divisor in zip(rope.inv_freq, divisors, strict=True))
    return replace(spec, ropes=(replace(rope, inv_freq=inv_freq),))


class PlainConfig(SimpleNamespace):
    """The fields of a transformers config that a spec reads, without what it takes to import transformers' own."""

    def get_text_config(self) -> "PlainConfig":
        return self


def _llama_config(metadata: _Metadata) -> Any:
    bias = "blk.0.attn_q.bias" in metadata.file.tensors
    values = {"head_dim": metadata.head_dim, "attention_bias": bias, **metadata.common()}
    return _config("LlamaConfig", metadata, values, {"mlp_bias": False})


def _qwen2_config(metadata: _Metadata) -> Any:
    values = metadata.common()
    defaults = {"layer_types": ["full_attention"] * values["num_hidden_layers"], "sliding_window": None}
    return _config("Qwen2Config", metadata, values, defaults)


def _config(name: str, metadata: _Metadata, values: Mapping[str, Any], defaults: Mapping[str, Any]) -> Any:
    """Scaled rotations are computed by transformers, from a config of its own; `defaults` are what it would add."""
    values = {"rope_parameters": metadata.rope_parameters(), **values}
    if values["rope_parameters"]["rope_type"] == "default":
        return PlainConfig(**values, **defaults, hidden_act="silu", dtype=None)
    import transformers

    return getattr(transformers, name)(**values)


def _gemma3_config(metadata: _Metadata) -> Any:
    from transformers import Gemma3TextConfig

    is_27b = metadata["block_count"] == 62  # the one size that scales by hidden / heads; no key says so
    share = metadata["embedding_length"] // metadata["attention.head_count"]
    local = {"rope_type": "default", "rope_theta": metadata.get("rope.freq_base_swa", 10000.0)}
    pattern: dict[str, Any] = {"sliding_window_pattern": metadata.get("attention.sliding_window_pattern", 6)}
    return Gemma3TextConfig(
        head_dim=metadata.head_dim,
        query_pre_attn_scalar=share if is_27b else metadata.head_dim,
        sliding_window=metadata["attention.sliding_window"],
        final_logit_softcapping=metadata.get("final_logit_softcapping"),
        rope_parameters={"full_attention": metadata.rope_parameters(), "sliding_attention": local},
        **pattern,
        **metadata.common(),
    )


def _as_stored(config: Any, name: str, values: Array) -> Array:
    return values


def _unpermuted(config: Any, name: str, values: Array) -> Array:
    """Llama's converter interleaves the two halves of each query and key head; here they lie apart."""
    if not _is_permuted(name):
        return values
    heads = config.num_attention_heads if ".attn_q." in name else config.num_key_value_heads
    pairs = values.reshape(heads, -1, 2, *values.shape[1:])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def _is_permuted(name: str) -> bool:
    return ".attn_q." in name or ".attn_k." in name


def _norms_as_offsets(config: Any, name: str, values: Array) -> Array:
    """Gemma's converter adds the 1 of its (1 + w) norms to the stored weights."""
    return values - 1 if _is_norm(name) else values


def _is_norm(name: str) -> bool:
    return name.endswith("norm.weight")


@dataclass(frozen=True, slots=True)
class _Architecture:
    family: str
    config: Callable[[_Metadata], Any]
    names: Mapping[str, str]
    restore: Callable[[Any, str, Array], Array] = _as_stored
    is_changed: Callable[[str], bool] = lambda name: False


_ARCHITECTURES: Mapping[str, _Architecture] = {
    "llama": _Architecture("LlamaForCausalLM", _llama_config, _NAMES, _unpermuted, _is_permuted),
    "qwen2": _Architecture("Qwen2ForCausalLM", _qwen2_config, _NAMES),
    "gemma3": _Architecture("Gemma3ForCausalLM", _gemma3_config, _GEMMA3_NAMES, _norms_as_offsets, _is_norm),
}

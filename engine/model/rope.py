"""Rotary settings of a transformers config as RopeSpecs; the frequencies are those transformers itself computes."""

from collections.abc import Mapping
from typing import Any

import torch

from engine.errors import ConfigError
from engine.model.spec import RopeSpec


def rope_spec(config: Any, layer_type: str | None = None) -> RopeSpec:
    """The rotation of layers of `layer_type`, or of all layers."""
    parameters = rope_parameters(config, layer_type)
    rope_type = parameters["rope_type"]
    if rope_type == "default":
        return RopeSpec(inv_freq=_default_inv_freq(parameters["rope_theta"], config.head_dim))
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # the usual rotation does without transformers

    if rope_type not in ROPE_INIT_FUNCTIONS:
        raise ConfigError(
            f"model: unknown rope_type '{rope_type}' in config.json; supported: default, "
            f"{', '.join(sorted(ROPE_INIT_FUNCTIONS))}"
        )
    inv_freq, attention_factor = _scaled_inv_freq(config, rope_type, layer_type)
    if rope_type == "dynamic":
        return RopeSpec(
            inv_freq, attention_factor, original_length=config.max_position_embeddings,
            ntk_base=float(parameters["rope_theta"]), ntk_factor=float(parameters["factor"]),
        )  # fmt: skip
    if rope_type == "longrope":
        original = int(parameters["original_max_position_embeddings"])
        long_inv_freq, _ = _scaled_inv_freq(config, rope_type, layer_type, seq_len=original + 1)
        return RopeSpec(inv_freq, attention_factor, original_length=original, long_inv_freq=long_inv_freq)
    return RopeSpec(inv_freq, attention_factor)


def rope_parameters(config: Any, layer_type: str | None = None) -> Mapping[str, Any]:
    """The parameters in force, `rope_type` and `rope_theta` always among them."""
    parameters = config.rope_parameters or {}
    if layer_type is not None:
        parameters = parameters[layer_type]
    if parameters and "rope_type" not in parameters:
        raise ConfigError(f"model: rope_parameters of a kind this architecture does not have: {', '.join(parameters)}")
    return {"rope_type": "default", "rope_theta": 10000.0, **parameters}


def scaled_context(config: Any) -> int:
    """The context that a config means: with these scalings it states the unscaled one.

    With YaRN it may state either, beside the original one: the longer of the two ways to read it counts.
    """
    parameters = rope_parameters(config)
    length, factor = int(config.max_position_embeddings), parameters.get("factor")
    if factor is None or parameters["rope_type"] not in ("linear", "dynamic", "yarn"):
        return length
    if parameters["rope_type"] == "yarn":
        return max(length, int(parameters["original_max_position_embeddings"] * factor))
    return int(length * factor)


def _default_inv_freq(theta: float, rotary_dim: int) -> tuple[float, ...]:
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    return tuple((1.0 / theta**exponents).tolist())


def _scaled_inv_freq(
    config: Any, rope_type: str, layer_type: str | None, seq_len: int | None = None
) -> tuple[tuple[float, ...], float]:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    try:
        inv_freq, factor = ROPE_INIT_FUNCTIONS[rope_type](
            config, torch.device("cpu"), seq_len=seq_len, layer_type=layer_type
        )
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(f"model: the {rope_type} rope parameters in config.json are not usable: {error!r}") from error
    return tuple(inv_freq.tolist()), float(factor)

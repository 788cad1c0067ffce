"""GGUF files written from tiny checkpoints, as llama.cpp's converter would write them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Quantization
from transformers import PreTrainedModel


def permuted(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """Llama's converter interleaves the halves of every head."""
    return weight.reshape(num_heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def as_converted(model: PreTrainedModel, name: str, weight: np.ndarray) -> np.ndarray:
    config = model.config
    if config.model_type == "llama" and ".q_proj." in name:
        return permuted(weight, config.num_attention_heads)
    if config.model_type == "llama" and ".k_proj." in name:
        return permuted(weight, config.num_key_value_heads)
    if config.model_type == "gemma3_text" and name.endswith("norm.weight"):
        return weight + 1
    return weight


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    quantization: Quantization = Quantization.F32,
    metadata: Iterable[tuple[Any, ...]] = (),
    tensors: Iterable[tuple[str, np.ndarray]] = (),
) -> Path:
    """A GGUF file of `model`; `metadata` are (method of the writer, arguments…), `tensors` are extra ones."""
    config = model.config
    architecture = {"gemma3_text": "gemma3"}.get(config.model_type, config.model_type)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], config.num_hidden_layers)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    for method, *arguments in metadata:
        getattr(writer, method)(*arguments)
    for name, parameter in model.named_parameters():
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        weight = as_converted(model, name, parameter.detach().numpy())
        if weight.ndim == 1:
            writer.add_tensor(stored, weight.astype(np.float32))
        else:
            writer.add_tensor(stored, gguf.quantize(weight, quantization), raw_dtype=quantization)
    for name, tensor in tensors:
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_header(path: Path, architecture: str, metadata: Iterable[tuple[Any, ...]]) -> Path:
    """A GGUF file without tensors."""
    writer = gguf.GGUFWriter(path, architecture)
    for method, *arguments in metadata:
        getattr(writer, method)(*arguments)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path

"""Real models' shapes, for engines of random weights: `model: random:<shape>`. Imports nothing, reads no file."""

from collections.abc import Mapping
from typing import Any

PREFIX = "random:"

# shape -> transformers config. No EOS: a generation of random text ends by its length.
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "tiny": {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 512, "hidden_size": 64,
        "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 32, "max_position_embeddings": 1024, "bos_token_id": None, "eos_token_id": None,
        "dtype": "bfloat16",
    },
    "qwen2.5-0.5b": {
        "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "vocab_size": 151936, "hidden_size": 896,
        "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}, "bos_token_id": None,
        "eos_token_id": None, "dtype": "bfloat16",
    },
    "llama-8b": {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "hidden_size": 4096,
        "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        },
        "bos_token_id": None, "eos_token_id": None, "dtype": "bfloat16",
    },
    "opt-13b": {
        "model_type": "opt", "architectures": ["OPTForCausalLM"], "vocab_size": 50272, "hidden_size": 5120,
        "ffn_dim": 20480, "num_hidden_layers": 40, "num_attention_heads": 40, "max_position_embeddings": 2048,
        "word_embed_proj_dim": 5120, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
        "dtype": "float16",
    },
}  # fmt: skip


def shape_name(model: str) -> str | None:
    """The shape that `model` names, known or not; None where it names no shape."""
    return model.removeprefix(PREFIX) if model.startswith(PREFIX) else None

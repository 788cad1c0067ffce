"""Tiny random checkpoints of every family, and transformers' own answers on them."""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

VOCAB_SIZE = 256
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
ROPES: dict[str, dict[str, Any]] = {
    "theta": {"rope_type": "default", "rope_theta": 500000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    "yarn": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64},
    "llama3": LLAMA3_ROPE,
    "longrope": {
        "rope_type": "longrope", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
        "short_factor": [1.0 + 0.05 * i for i in range(16)], "long_factor": [1.5 + 0.5 * i for i in range(16)],
    },
}  # fmt: skip


def rand_config(**changes: Any) -> LlamaConfig:
    """RAND: a random 2-layer Llama whose output is sensitive to the contents of its KV cache."""
    settings: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 512,
        "initializer_range": 0.2, "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip
    return LlamaConfig(**{**settings, **changes})


def qwen2_config(**changes: Any) -> Qwen2Config:
    settings: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "initializer_range": 0.2,
        "tie_word_embeddings": True,
    }  # fmt: skip
    return Qwen2Config(**{**settings, **changes})


def opt_config(**changes: Any) -> OPTConfig:
    settings: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE, "hidden_size": 64, "ffn_dim": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "max_position_embeddings": 512, "init_std": 0.2, "eos_token_id": None, "bos_token_id": None, "pad_token_id": 0,
    }  # fmt: skip
    return OPTConfig(**{**settings, **changes})


def opt_350m_config() -> OPTConfig:
    """OPT as opt-350m has it: norms after the branches, no final norm, embeddings narrower than the model."""
    return opt_config(do_layer_norm_before=False, word_embed_proj_dim=32)


def gemma3_config(**changes: Any) -> Gemma3TextConfig:
    settings: dict[str, Any] = {
        "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 512,
        "initializer_range": 0.2, "query_pre_attn_scalar": 24, "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"] * 2, "pad_token_id": 0, "eos_token_id": None,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    }  # fmt: skip
    return Gemma3TextConfig(**{**settings, **changes})


FAMILIES: dict[str, PreTrainedConfig] = {
    "llama2": rand_config(),
    "llama3": rand_config(rope_parameters=LLAMA3_ROPE, num_key_value_heads=1, attention_bias=True, mlp_bias=True),
    "qwen2": qwen2_config(),
    "qwen2-window": qwen2_config(use_sliding_window=True, sliding_window=8, max_window_layers=1),
    "opt": opt_config(),
    "opt-350m": opt_350m_config(),
    "gemma3": gemma3_config(),
    "gemma3-softcap": gemma3_config(final_logit_softcapping=5.0, hidden_activation="gelu"),
}

_CLASSES = {
    "llama": LlamaForCausalLM,
    "qwen2": Qwen2ForCausalLM,
    "opt": OPTForCausalLM,
    "gemma3_text": Gemma3ForCausalLM,
}


def random_model(config: PreTrainedConfig, seed: int = 0) -> PreTrainedModel:
    """float32; norms and biases are random too, so that a lost one shows."""
    torch.manual_seed(seed)
    model = _CLASSES[config.model_type](config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def save_checkpoint(folder: Path, config: PreTrainedConfig, seed: int = 0, **save_options: Any) -> PreTrainedModel:
    """A random model, saved; returned as transformers reads it back."""
    random_model(config, seed).save_pretrained(folder, **save_options)
    return reference(folder)


def reference(folder: Path, **options: Any) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", **options
    )
    return model.eval()


def prompt(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist()


@torch.inference_mode()
def reference_logits(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """[num_tokens, vocab_size]"""
    return model(torch.tensor([token_ids])).logits[0].float()


def is_greedy(model: PreTrainedModel, token_ids: list[int], continuation: list[int]) -> bool:
    """Whether `continuation` is what greedy `generate` gives: each token the best one after those before it.

    One forward pass instead of one a token; not for rotations that depend on the length.
    """
    logits = reference_logits(model, [*token_ids, *continuation[:-1]])
    return logits[len(token_ids) - 1:].argmax(-1).tolist() == continuation


@torch.inference_mode()
def reference_tokens(model: PreTrainedModel, token_ids: list[int], num_tokens: int) -> list[int]:
    """Greedy continuation; nothing ends it early."""
    output = model.generate(
        torch.tensor([token_ids]), max_new_tokens=num_tokens, min_new_tokens=num_tokens, do_sample=False,
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    return output[0, len(token_ids):].tolist()

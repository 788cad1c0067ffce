"""Tiny random encoders of every family, and transformers' own answers on them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    BertConfig,
    ModernBertConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    XLMRobertaConfig,
)

VOCAB_SIZE = 256
_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "initializer_range": 0.2,
}  # fmt: skip


def bert_config(**changes: Any) -> BertConfig:
    return BertConfig(**{**_COMMON, "max_position_embeddings": 128, **changes})


def roberta_config(**changes: Any) -> RobertaConfig:
    settings = {"max_position_embeddings": 130, "type_vocab_size": 1, "pad_token_id": 1}
    return RobertaConfig(**{**_COMMON, **settings, **changes})


def xlm_roberta_config(**changes: Any) -> XLMRobertaConfig:
    settings = {"max_position_embeddings": 130, "type_vocab_size": 1, "pad_token_id": 1}
    return XLMRobertaConfig(**{**_COMMON, **settings, **changes})


def modernbert_config(**changes: Any) -> ModernBertConfig:
    special = dict.fromkeys(("pad_token_id", "eos_token_id", "bos_token_id", "cls_token_id", "sep_token_id"), 0)
    return ModernBertConfig(**{**_COMMON, **special, "max_position_embeddings": 128, "local_attention": 16, **changes})


ENCODERS: dict[str, PreTrainedConfig] = {
    "bert": bert_config(),
    "roberta": roberta_config(hidden_act="relu"),
    "xlm-roberta": xlm_roberta_config(),
    "modernbert": modernbert_config(),
    "modernbert-biases": modernbert_config(
        norm_bias=True, attention_bias=True, mlp_bias=True, hidden_activation="silu", local_attention=4
    ),
}


def save_encoder(folder: Path, config: PreTrainedConfig, *, classifier: bool = False) -> PreTrainedModel:
    """A random encoder, saved; returned as transformers reads it back. Norms and biases are random too."""
    torch.manual_seed(0)
    auto: Any = AutoModelForSequenceClassification if classifier else AutoModel
    model = auto.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    read: PreTrainedModel = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return read.eval()


def write_word_tokenizer(folder: Path) -> None:
    """Every one of w4, w5, … is a token whose id is its number; texts stand between [CLS] and [SEP]."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{index}" for index in range(4, VOCAB_SIZE))]
    pipeline = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    pipeline.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    pipeline.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    PreTrainedTokenizerFast(tokenizer_object=pipeline, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)


def text(length: int, seed: int = 0) -> list[int]:
    """Token ids without special ones."""
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist()


@torch.inference_mode()
def reference_hidden(model: PreTrainedModel, token_ids: Sequence[int], token_types: Sequence[int] = ()) -> torch.Tensor:
    """[num_tokens, hidden_size] of one text by itself."""
    options = {"token_type_ids": torch.tensor([token_types])} if token_types else {}
    hidden: torch.Tensor = model(torch.tensor([token_ids]), **options).last_hidden_state[0]
    return hidden

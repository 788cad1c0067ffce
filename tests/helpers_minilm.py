"""The packaged embedding model, and what sentence-transformers makes of a text with it, by way of transformers."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from engine.errors import ConfigError
from engine.model.hub import resolve

SENTENCES = [
    "That is a happy person",
    "That is a happy dog",
    "Today is a sunny day, and the café's naïve waiter — 李 — brings crème brûlée 🌶.",
    "x",
    "A longer text. " * 30,
]


def minilm_path() -> Path:
    """Fetches the model if need be; skips the test where it cannot be had."""
    try:
        return resolve("minilm").path
    except ConfigError as error:
        pytest.skip(str(error))


@torch.inference_mode()
def reference_vectors(texts: Sequence[str]) -> torch.Tensor:
    """float32 [num_texts, 384]: the mean over a text's tokens, at most 256 of them, brought to length 1.

    One padded batch, as sentence-transformers computes it.
    """
    folder = str(minilm_path())
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).float().eval()
    batch = tokenizer(list(texts), padding=True, truncation=True, max_length=256, return_tensors="pt")
    hidden, mask = model(**batch).last_hidden_state, batch["attention_mask"][:, :, None].float()
    mean = (hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
    return torch.nn.functional.normalize(mean, dim=1)

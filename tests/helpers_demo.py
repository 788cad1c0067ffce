"""The demo model in transformers, in float32, with the weights that its GGUF file holds, dequantised."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.model.description import ModelDescription, describe_model
from engine.model.families.llama import NAMES
from engine.model.hub import resolve
from engine.model.spec import tensor_shapes
from engine.model.weights.checkpoint import Checkpoint

NEAR_TIE = 1e-3   # two logits this close may rank either way


def demo_path() -> Path:
    """Fetches the model if need be; skips the test where it cannot be had."""
    try:
        return resolve("demo").path
    except ConfigError as error:
        pytest.skip(str(error))


def demo_description() -> ModelDescription:
    demo_path()
    return describe_model(resolve("demo"), EngineConfig(model="demo", dtype="float32", max_model_len=256), "cpu")


def demo_reference(description: ModelDescription) -> PreTrainedModel:
    config = Qwen2Config(**{**vars(description.hf_config), "layer_types": None})
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    checkpoint = Checkpoint(description.spec, description.names, description.source)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name in tensor_shapes(description.spec):
            parameters.pop(NAMES.stored(name)).copy_(checkpoint.read(name))
    assert not parameters
    return model


@torch.inference_mode()
def num_agreeing(
    reference: PreTrainedModel, prompt: list[int], tokens: list[int], near_tie: float = NEAR_TIE
) -> int:
    """How many of `tokens`, from the first, are greedy choices of the reference; it ends before the first near tie.

    One forward pass over prompt and tokens: if each is the best after those before it, `generate` gives the same.
    Raises AssertionError at a token that is not.
    """
    logits = reference(torch.tensor([prompt + tokens[:-1]])).logits[0, len(prompt) - 1 :]
    for count, (row, token) in enumerate(zip(logits, tokens, strict=True)):
        best, second = row.topk(2).values.tolist()
        if best - second < near_tie:
            return count
        assert token == int(row.argmax()), (prompt, tokens, count)
    return len(tokens)

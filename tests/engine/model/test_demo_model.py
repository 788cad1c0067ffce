"""The demo model in float32 against transformers on the same dequantised weights."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.model.description import describe_model
from engine.model.families.llama import NAMES
from engine.model.hub import resolve
from engine.model.loader import load_described
from engine.model.spec import tensor_shapes
from engine.model.weights.checkpoint import Checkpoint
from engine.text.tokenizer import load_tokenizer
from tests.engine.model.driver import Driver
from tests.helpers_models import reference_logits

pytestmark = [pytest.mark.demo, pytest.mark.exhaustive]

NUM_TOKENS = 64
NEAR_TIE = 1e-3   # two logits this close may rank either way
PROMPTS = [
    "def fibonacci(n):", "The capital of France is", "import numpy as np\n", "Once upon a time", "SELECT name FROM",
    "1, 1, 2, 3, 5, 8,", "Liebe Grüße aus", "class Stack:\n    def", "# Bubble sort in Python\n", "To be, or not",
    "int main(void) {", "日本の首都は", "HTTP status 404 means", "x = [i for i in", "Der Zug fährt um",
    "A haiku about rain:\n",
    "fn main() {\n    let", "The quick brown fox", "{\"name\": \"Ada\",", "Water boils at",
]  # fmt: skip


@pytest.fixture(scope="module")
def description():
    try:
        resolved = resolve("demo")
    except ConfigError as error:
        pytest.skip(str(error))
    return describe_model(resolved, EngineConfig(model="demo", dtype="float32", max_model_len=256), "cpu")


@pytest.fixture(scope="module")
def transformers_model(description):
    model = AutoModelForCausalLM.from_config(description.hf_config, dtype=torch.float32).eval()
    checkpoint = Checkpoint(description.spec, description.names, description.source)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name in tensor_shapes(description.spec):
            parameters.pop(NAMES.stored(name)).copy_(checkpoint.read(name))
    assert not parameters
    return model


def test_greedy_tokens_equal_transformers_up_to_near_ties(description, transformers_model):
    tokenizer = load_tokenizer(description.resolved.path)
    prompts = [tokenizer.encode(text) for text in PROMPTS]
    driver = Driver(load_described(description).decoder, 128, num_sequences=len(prompts))
    compared = 0
    for prompt, tokens in zip(prompts, driver.generate(prompts, NUM_TOKENS), strict=True):
        logits = reference_logits(transformers_model, [*prompt, *tokens[:-1]])[len(prompt) - 1:]
        for row, token in zip(logits, tokens, strict=True):
            best, second = row.topk(2).values.tolist()
            if best - second < NEAR_TIE:
                break
            assert token == row.argmax()
            compared += 1
    assert compared > len(PROMPTS) * NUM_TOKENS // 2

"""The demo model with every op of ours computed by the Triton kernels, in the interpreter, for a few tokens."""

import pytest
import torch

from engine.model.loader import load_described
from engine.text.tokenizer import load_tokenizer
from tests.engine.model.driver import Driver
from tests.helpers_demo import demo_description
from tests.helpers_triton import Triton

pytestmark = [pytest.mark.demo, pytest.mark.exhaustive]

NUM_TOKENS = 3
PROMPTS = ["def fib(n):", "The capital of France is"]


def test_triton_and_the_cpu_backend_choose_the_same_tokens():
    description = demo_description()
    tokenizer = load_tokenizer(description.resolved.path)
    prompts = [tokenizer.encode(text) for text in PROMPTS]
    decoder = load_described(description).decoder

    def generate() -> list[list[int]]:
        return Driver(decoder, 32, num_sequences=len(prompts)).generate(prompts, NUM_TOKENS)

    expected = generate()
    with Triton() as triton, torch.inference_mode():
        assert generate() == expected
    assert {"paged_attention", "rope_and_cache_write", "rms_norm", "add_rms_norm"} <= triton.ops

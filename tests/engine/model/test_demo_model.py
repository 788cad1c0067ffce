"""The demo model in float32 against transformers on the same dequantised weights."""

import pytest

from engine.model.loader import load_described
from engine.text.tokenizer import load_tokenizer
from tests.engine.model.driver import Driver
from tests.helpers_demo import demo_description, demo_reference, num_agreeing

pytestmark = [pytest.mark.demo, pytest.mark.exhaustive]

NUM_TOKENS = 64
PROMPTS = [
    "def fibonacci(n):", "The capital of France is", "import numpy as np\n", "Once upon a time", "SELECT name FROM",
    "1, 1, 2, 3, 5, 8,", "Liebe Grüße aus", "class Stack:\n    def", "# Bubble sort in Python\n", "To be, or not",
    "int main(void) {", "日本の首都は", "HTTP status 404 means", "x = [i for i in", "Der Zug fährt um",
    "A haiku about rain:\n",
    "fn main() {\n    let", "The quick brown fox", "{\"name\": \"Ada\",", "Water boils at",
]  # fmt: skip


def test_greedy_tokens_equal_transformers_up_to_near_ties():
    description = demo_description()
    reference = demo_reference(description)
    tokenizer = load_tokenizer(description.resolved.path)
    prompts = [tokenizer.encode(text) for text in PROMPTS]
    driver = Driver(load_described(description).decoder, 128, num_sequences=len(prompts))
    generated = driver.generate(prompts, NUM_TOKENS)
    compared = sum(num_agreeing(reference, *pair) for pair in zip(prompts, generated, strict=True))
    assert compared > len(PROMPTS) * NUM_TOKENS // 2

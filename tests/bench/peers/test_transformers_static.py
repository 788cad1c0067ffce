import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from bench.peers.transformers_static import StaticGenerator, left_padded
from bench.workloads import WorkloadRequest


@pytest.fixture(scope="module")
def generate():
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, eos_token_id=list(range(16)),       # every token would end a request
    )
    return StaticGenerator(Qwen2ForCausalLM(config).eval())


def test_a_batch_makes_every_token_it_was_asked_for_in_spite_of_eos(generate):
    steps = []
    generate([WorkloadRequest(0, (3, 4, 5), 2), WorkloadRequest(1, (6,), 5)], 5, lambda: steps.append(None))
    assert len(steps) == 5


def test_prompts_are_padded_at_the_left_and_masked():
    input_ids, attention_mask = left_padded([(3, 4, 5), (6,)])
    assert input_ids.tolist() == [[3, 4, 5], [0, 0, 6]]
    assert attention_mask.tolist() == [[1, 1, 1], [0, 0, 1]]

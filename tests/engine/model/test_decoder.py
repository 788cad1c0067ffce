"""Every family against transformers, in float32, whatever the chunking and the block size."""

import pytest
import torch

from engine.errors import ConfigError
from tests.engine.model.driver import Driver, load
from tests.helpers_models import (
    FAMILIES,
    is_greedy,
    prompt,
    rand_config,
    random_model,
    reference_logits,
    reference_tokens,
    save_checkpoint,
)

PROMPT = prompt(45)


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return save_checkpoint(folder, FAMILIES[request.param]), load(folder).decoder


def test_logits_equal_transformers_for_every_chunking_and_block_size(family):
    reference, decoder = family
    expected = reference_logits(reference, PROMPT)
    for budget, block_size in ((64, 16), (1, 1), (7, 32)):
        logits = Driver(decoder, 64, block_size=block_size).prefill(PROMPT, budget)
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_greedy_tokens_of_a_mixed_batch_equal_transformers(family):
    reference, decoder = family
    prompts = [prompt(length) for length in (1, 23, 45)]
    generated = Driver(decoder, 128, num_sequences=3).generate(prompts, 64, budget=7)
    assert all(is_greedy(reference, ids, tokens) for ids, tokens in zip(prompts, generated, strict=True))


def test_is_greedy_means_equal_to_generate(tmp_path):
    model = save_checkpoint(tmp_path, rand_config())
    tokens = reference_tokens(model, PROMPT, 20)
    assert is_greedy(model, PROMPT, tokens)
    assert not is_greedy(model, PROMPT, [*tokens[:10], tokens[10] ^ 1, *tokens[11:]])


@pytest.mark.exhaustive
def test_every_budget_with_every_block_size(family):
    reference, decoder = family
    expected = reference_logits(reference, PROMPT)
    for budget in (1, 7, 64):
        for block_size in (1, 16, 32):
            logits = Driver(decoder, 64, block_size=block_size).prefill(PROMPT, budget)
            torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_a_row_does_not_depend_on_its_neighbours_or_its_chunk(family):
    _, decoder = family
    alone = Driver(decoder, 64).prefill(PROMPT, 64)
    assert torch.equal(Driver(decoder, 64, block_size=1).prefill(PROMPT, 7), alone)
    together = Driver(decoder, 64, num_sequences=3)
    batch = together.step([(i, ids, 0, len(ids)) for i, ids in enumerate((prompt(13), PROMPT, prompt(7)))])
    assert torch.equal(batch[1], alone)


def test_padding_rows_of_the_vocabulary_get_no_logits(tmp_path):
    save_checkpoint(tmp_path, rand_config())
    whole = Driver(load(tmp_path).decoder, 64).prefill(PROMPT, 64)
    cut = Driver(load(tmp_path, num_valid_tokens=201).decoder, 64).prefill(PROMPT, 64)
    assert cut.shape[1] == 201
    torch.testing.assert_close(cut, whole[:, :201])


def test_float16_weights_stay_close_to_float32(tmp_path):
    save_checkpoint(tmp_path, rand_config())
    exact = Driver(load(tmp_path).decoder, 64).prefill(PROMPT, 64)
    rounded = Driver(load(tmp_path, dtype="float16").decoder, 64).prefill(PROMPT, 64)
    assert not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, atol=0.05, rtol=0.01)


def test_weights_beyond_float16_are_refused(tmp_path):
    model = random_model(rand_config())
    model.model.layers[1].mlp.down_proj.weight.data[0, 0] = 1e5
    model.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"dtype: float16 does not suit layers\.1\.mlp\.down"):
        load(tmp_path, dtype="float16")

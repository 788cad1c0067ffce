"""The whole engine on a card against transformers `generate` on the CPU: float32, greedy, token for token."""

import pytest

from engine.build import build_core
from engine.config import EngineConfig
from tests.helpers import generation
from tests.helpers_models import FAMILIES, prompt, reference_tokens, save_checkpoint
from tests.tiny_tokenizer import write_tiny_tokenizer

NUM_TOKENS = 48
PROMPTS = {f"{length}": prompt(length) for length in (1, 5, 23, 45)}
POOLS = {"roomy": (64, 1024), "small chunks": (7, 1024), "preempting": (16, 192)}    # token budget, tokens of KV


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request, tmp_path_factory):
    """A checkpoint's folder and what transformers generates for every prompt."""
    folder = tmp_path_factory.mktemp(request.param)
    reference = save_checkpoint(folder, FAMILIES[request.param])
    write_tiny_tokenizer(folder)
    return folder, {name: reference_tokens(reference, ids, NUM_TOKENS) for name, ids in PROMPTS.items()}


def serve(folder, device, budget, capacity):
    config = EngineConfig(
        model=str(folder), device=device.type, dtype="float32",
        scheduler={"max_num_batched_tokens": budget, "max_num_seqs": 4},
        kv_cache={"block_size": 16, "capacity_tokens": capacity},
    )  # fmt: skip
    core = build_core(config)
    for name, ids in PROMPTS.items():
        core.add_request(generation(name, ids, NUM_TOKENS, {"ignore_eos": True}))
    tokens = {name: [] for name in PROMPTS}
    while core.has_work:
        for output in core.step():
            tokens[output.request_id] += output.token_ids
    core.check_integrity()
    return tokens, core.stats()


@pytest.mark.parametrize("pool", POOLS)
def test_every_request_of_a_mixed_batch_equals_transformers(family, pool, device):
    folder, expected = family
    tokens, stats = serve(folder, device, *POOLS[pool])
    assert tokens == expected
    assert (stats.num_preemptions > 0) == (pool == "preempting")

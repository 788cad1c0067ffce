"""The salt of prefixes: which sequences may share K/V."""

import dataclasses

import pytest

from engine.build import prefix_salt
from engine.model.spec import LayerSpec, ModelSpec, NormSpec, RopeSpec
from tests.helpers import generation

SPEC = ModelSpec(
    architecture="Test",
    vocab_size=8,
    hidden_size=8,
    intermediate_size=8,
    num_query_heads=1,
    num_kv_heads=1,
    head_dim=8,
    layers=(LayerSpec(),),
    ropes=(RopeSpec(inv_freq=(1.0,)),),
    norm=NormSpec("rms", 1e-6),
    max_model_len=64,
    activation="silu",
    gated_mlp=True,
    attention_scale=1.0,
)
DYNAMIC = dataclasses.replace(SPEC, ropes=(RopeSpec((1.0,), original_length=4, ntk_base=10.0, ntk_factor=2.0),))


@pytest.mark.parametrize(
    ("spec", "lengths", "share"),
    [(SPEC, (3, 50), True), (DYNAMIC, (3, 4), True), (DYNAMIC, (4, 5), False), (DYNAMIC, (5, 6), False)],
)
def test_prompts_share_prefixes_only_if_they_rotate_alike(spec, lengths, share):
    first, second = (prefix_salt(spec, generation("a", [1] * length)) for length in lengths)
    assert (first == second) is share


def test_equal_lengths_share_beyond_the_original_length():
    assert prefix_salt(DYNAMIC, generation("a", [1] * 9)) == prefix_salt(DYNAMIC, generation("b", [2] * 9))

"""Every rope scaling of transformers, at lengths on both sides of the original context."""

import json

import pytest
import torch

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.model.description import describe_model
from engine.model.hub import ResolvedModel
from tests.engine.model.driver import Driver, load
from tests.helpers_models import (
    ROPES,
    gemma3_config,
    prompt,
    qwen2_config,
    rand_config,
    reference,
    reference_logits,
    reference_tokens,
    save_checkpoint,
)

# lengths around max_position_embeddings 128 (dynamic) and original_max_position_embeddings 64 (the others)
CONTEXT = {"dynamic": 128, "linear": 128}


def config(name):
    return rand_config(rope_parameters=dict(ROPES[name]), max_position_embeddings=CONTEXT.get(name, 512))


@pytest.mark.parametrize("name", ROPES)
def test_lo_04_prompts_of_every_length_equal_transformers(tmp_path, name):
    model = save_checkpoint(tmp_path, config(name))
    decoder = load(tmp_path).decoder
    for length in (60, 200):     # angles of 8 tokens are among those of 60
        ids = prompt(length)
        logits = Driver(decoder, 256).prefill(ids, 64)
        torch.testing.assert_close(logits, reference_logits(model, ids), atol=5e-4, rtol=1e-3)


@pytest.mark.parametrize("name", ["dynamic", "longrope"])
def test_lo_04_decoding_across_the_original_length_equals_transformers(tmp_path, name):
    save_checkpoint(tmp_path, config(name))
    loaded = load(tmp_path)
    original = loaded.spec.rope_shared_length
    prompts = [prompt(original - 4), prompt(original + 20), prompt(5)]
    generated = Driver(loaded.decoder, 256, num_sequences=3).generate(prompts, 12)
    expected = [reference_tokens(save_checkpoint(tmp_path, config(name)), ids, 12) for ids in prompts]
    assert generated == expected  # a fresh reference each: transformers keeps the longest length it has seen


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ROPES)
def test_lo_04_tokens_and_log_probabilities_equal_transformers_at_every_length(tmp_path, name):
    """Beyond the original context too; a fresh reference each, which then has seen no longer one."""
    context = {"dynamic": 256, "linear": 128}.get(name, 512)
    save_checkpoint(tmp_path, rand_config(rope_parameters=dict(ROPES[name]), max_position_embeddings=context))
    decoder = load(tmp_path).decoder
    for length in (8, 60, 200, 400):
        ids = prompt(length)
        (generated,) = Driver(decoder, 512).generate([ids], 8)
        assert generated == reference_tokens(reference(tmp_path), ids, 8)
        logprobs = Driver(decoder, 512).prefill(ids, 64).log_softmax(-1)
        torch.testing.assert_close(
            logprobs, reference_logits(reference(tmp_path), ids).log_softmax(-1), atol=1e-3, rtol=0
        )


@pytest.mark.parametrize("spelling", ["by layer type", "older"])
def test_lo_04_rotations_by_layer_type_equal_transformers(tmp_path, spelling):
    """Gemma 3 rotates its layers with windows by another base than the rest, which alone are scaled."""
    model = save_checkpoint(tmp_path, gemma3_config(sliding_window=64))
    if spelling == "older":
        scaling = {"rope_type": "linear", "factor": 8.0}
        old = {"rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "rope_scaling": scaling}
        rewrite_config(tmp_path, rope_parameters=None, **old)
    ids = prompt(200)
    logits = Driver(load(tmp_path).decoder, 256).prefill(ids, 64)
    torch.testing.assert_close(logits, reference_logits(model, ids), atol=5e-4, rtol=1e-3)


def test_lo_04_an_unknown_type_of_one_kind_of_layer_is_named(tmp_path):
    save_checkpoint(tmp_path, gemma3_config())
    full = {"rope_type": "spiral", "rope_theta": 10000.0}
    local = {"rope_type": "default", "rope_theta": 10000.0}
    rewrite_config(tmp_path, rope_parameters={"full_attention": full, "sliding_attention": local})
    with pytest.raises(ConfigError, match="spiral"):
        described(tmp_path)


def test_only_length_dependent_scalings_forbid_sharing_prefixes(tmp_path):
    dependent = {}
    for name in ROPES:
        save_checkpoint(tmp_path / name, config(name))
        dependent[name] = described(tmp_path / name).spec.rope_shared_length
    assert {name: length for name, length in dependent.items() if length} == {"dynamic": 128, "longrope": 64}


def described(folder, **options):
    resolved = ResolvedModel("folder", folder, folder.name)
    return describe_model(resolved, EngineConfig(model=str(folder), dtype="float32", **options), "cpu")


def rewrite_config(folder, **changes):
    path = folder / "config.json"
    raw = json.loads(path.read_text())
    raw.update(changes)
    path.write_text(json.dumps({key: value for key, value in raw.items() if value is not None}))


@pytest.mark.parametrize(
    ("old_keys", "new"),
    [
        ({"rope_theta": 500000.0}, {"rope_type": "default", "rope_theta": 500000.0}),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_theta": 10000.0}, ROPES["linear"]),
        ({"rope_scaling": ROPES["yarn"] | {"type": "yarn"}, "rope_theta": 10000.0}, ROPES["yarn"]),
        ({"rope_scaling": ROPES["llama3"], "rope_theta": 10000.0}, ROPES["llama3"]),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}, "rope_theta": 10000.0}, ROPES["dynamic"]),
    ],
    ids=["theta at top level", "type linear", "yarn", "llama3", "type dynamic"],
)
def test_lo_04_older_spellings_mean_the_same(tmp_path, old_keys, new):
    save_checkpoint(tmp_path, rand_config())
    rewrite_config(tmp_path, rope_parameters=new)
    expected = described(tmp_path).spec
    rewrite_config(tmp_path, rope_parameters=None, **old_keys)
    assert described(tmp_path).spec == expected
    assert expected.ropes != described(save_default(tmp_path / "default")).spec.ropes or expected.max_model_len != 512


def save_default(folder):
    save_checkpoint(folder, rand_config())
    return folder


def test_lo_04_an_unknown_rope_type_is_named(tmp_path):
    save_checkpoint(tmp_path, rand_config())
    rewrite_config(tmp_path, rope_parameters={"rope_type": "spiral", "rope_theta": 10000.0, "factor": 2.0})
    with pytest.raises(ConfigError, match=r"'spiral'.*supported: default, dynamic"):
        described(tmp_path)


def test_lo_04_parameters_by_layer_type_are_refused_where_transformers_cannot_use_them(tmp_path):
    save_checkpoint(tmp_path, qwen2_config())
    rewrite_config(tmp_path, rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 10000.0}})
    with pytest.raises(ConfigError, match="full_attention"):
        described(tmp_path)


def test_lo_04_a_scaling_without_its_factor_is_refused(tmp_path):
    save_checkpoint(tmp_path, rand_config())
    rewrite_config(tmp_path, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0})
    with pytest.raises(ConfigError, match="factor"):
        described(tmp_path)


@pytest.mark.parametrize(
    ("name", "stated", "length"),
    [("theta", 512, 512), ("linear", 128, 512), ("dynamic", 128, 256), ("llama3", 512, 512), ("longrope", 512, 512),
     ("yarn", 64, 256), ("yarn", 512, 512)],
)  # fmt: skip
def test_lo_04_the_context_follows_the_config(tmp_path, name, stated, length):
    """With YaRN some configs state the original context and others the extended one."""
    save_checkpoint(tmp_path, rand_config(rope_parameters=dict(ROPES[name]), max_position_embeddings=stated))
    assert described(tmp_path).spec.max_model_len == length


def test_a_longer_context_than_the_models_is_refused(tmp_path):
    save_checkpoint(tmp_path, rand_config())
    assert described(tmp_path, max_model_len=100).max_model_len == 100
    with pytest.raises(ConfigError, match=r"max_model_len: 600 exceeds the model's context of 512"):
        described(tmp_path, max_model_len=600)

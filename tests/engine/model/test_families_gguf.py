"""GGUF files of each architecture, written from tiny checkpoints as llama.cpp's converter would, against those."""

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Quantization

from engine.errors import ConfigError
from engine.model.families.gguf import open_gguf
from engine.model.weights.checkpoint import Checkpoint
from engine.model.weights.gguf import dequantize
from engine.model.weights.gguf_file import GGUFFile
from tests.engine.model.driver import Driver, load
from tests.helpers_gguf import write_gguf
from tests.helpers_models import (
    LLAMA3_ROPE,
    ROPES,
    gemma3_config,
    prompt,
    qwen2_config,
    rand_config,
    random_model,
    reference_logits,
)

PROMPT = prompt(100)
EXACT = {"atol": 1e-4, "rtol": 1e-4}


THETA = ("add_rope_freq_base", 10000.0)
MODELS = {
    "llama": (rand_config(), [THETA]),
    "llama-bias-tied": (rand_config(attention_bias=True, tie_word_embeddings=True), [THETA]),
    "qwen2": (qwen2_config(), [THETA]),
    "gemma3": (
        gemma3_config(query_pre_attn_scalar=32, layer_types=None, num_hidden_layers=6),
        [
            ("add_rope_freq_base", 1000000.0),
            ("add_rope_scaling_type", gguf.RopeScalingType.LINEAR),
            ("add_rope_scaling_factor", 8.0),
            ("add_sliding_window", 8),
        ],
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_the_checkpoint_the_file_was_written_from(tmp_path, name):
    """LO-01 for those that are tied and hold no output.weight."""
    config, metadata = MODELS[name]
    model = random_model(config)
    decoder = load(write_gguf(tmp_path / "m.gguf", model, metadata=metadata)).decoder
    torch.testing.assert_close(Driver(decoder, 128).prefill(PROMPT, 64), reference_logits(model, PROMPT), **EXACT)


@pytest.mark.parametrize("quantization", [Quantization.F16, Quantization.Q8_0, Quantization.Q5_0, Quantization.Q4_0])
def test_logits_equal_a_checkpoint_with_the_same_rounded_weights(tmp_path, quantization):
    model = random_model(rand_config())
    path = write_gguf(tmp_path / "m.gguf", model, quantization, [THETA])
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                rounded = gguf.dequantize(gguf.quantize(parameter.numpy(), quantization), quantization)
                parameter.copy_(torch.from_numpy(rounded))
    logits = Driver(load(path).decoder, 128).prefill(PROMPT, 64)
    torch.testing.assert_close(logits, reference_logits(model, PROMPT), **EXACT)


@pytest.mark.parametrize("quantization", [Quantization.Q4_K, Quantization.Q5_K, Quantization.Q6_K, Quantization.Q5_0])
def test_dequantised_in_pieces_equals_gguf_at_once(tmp_path, quantization):
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[quantization]
    columns = 8 * block_size
    blocks = np.random.default_rng(0).integers(0, 60, (700, 8, block_bytes), np.uint8)  # small: no scale is a NaN
    raw = blocks.reshape(700, 8 * block_bytes)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("t", raw, raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    values = dequantize(GGUFFile(tmp_path / "m.gguf"), "t")
    assert values.shape == (700, columns)
    np.testing.assert_array_equal(values, gguf.dequantize(raw, quantization))


ORIGINAL = ("add_rope_scaling_orig_ctx_len", 64)
YARN = [("add_rope_scaling_type", gguf.RopeScalingType.YARN), ("add_rope_scaling_factor", 4.0)]
LINEAR = [("add_rope_scaling_type", gguf.RopeScalingType.LINEAR), ("add_rope_scaling_factor", 4.0)]


@pytest.mark.parametrize(
    ("context", "rope", "metadata", "max_model_len"),
    [
        (512, {"rope_theta": 500000.0}, [("add_rope_freq_base", 500000.0)], 512),
        (128, {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}, [THETA, *LINEAR], 512),
        (128, {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
         [THETA, ("add_float32", "llama.rope.scale_linear", 4.0)], 512),
        (512, {"rope_type": "yarn", "rope_theta": 20000.0, "factor": 4.0, "original_max_position_embeddings": 64},
         [("add_rope_freq_base", 20000.0), *YARN, ORIGINAL], 512),
        (64, {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64},
         [THETA, *YARN], 256),
    ],
    ids=["base", "linear", "linear, old key", "yarn", "yarn of the whole context"],
)  # fmt: skip
def test_lo_04_rotary_settings_of_the_metadata(tmp_path, context, rope, metadata, max_model_len):
    parameters = {"rope_type": "default", **rope}
    model = random_model(rand_config(rope_parameters=parameters, max_position_embeddings=context))
    loaded = load(write_gguf(tmp_path / "m.gguf", model, metadata=metadata))
    assert loaded.spec.max_model_len == max_model_len
    ids = prompt(200)
    torch.testing.assert_close(Driver(loaded.decoder, 256).prefill(ids, 64), reference_logits(model, ids), **EXACT)


def test_lo_04_long_and_short_factors_of_the_tensors(tmp_path):
    model = random_model(rand_config(rope_parameters=dict(ROPES["longrope"]), max_position_embeddings=256))
    metadata = [THETA, ("add_rope_scaling_type", gguf.RopeScalingType.LONGROPE), ORIGINAL]
    factors = [
        (f"rope_factors_{length}.weight", np.array(ROPES["longrope"][f"{length}_factor"], np.float32))
        for length in ("long", "short")
    ]
    decoder = load(write_gguf(tmp_path / "m.gguf", model, metadata=metadata, tensors=factors)).decoder
    for length in (40, 200):
        ids = prompt(length)
        torch.testing.assert_close(Driver(decoder, 256).prefill(ids, 64), reference_logits(model, ids), **EXACT)


@pytest.mark.parametrize(
    ("config", "metadata", "tensors", "message"),
    [
        (rand_config(), [("add_string", "llama.rope.scaling.type", "spiral")], [], "'spiral' is not supported"),
        (rand_config(), [YARN[0], ORIGINAL], [], "without rope.scaling.factor"),
        (rand_config(), [("add_rope_dimension_count", 16)], [], "part of each head"),
        (qwen2_config(), [("add_rope_dimension_count", 8)], [], "part of each head"),
        (rand_config(), [], [("rope_freqs.weight", np.ones(15, np.float32))], "has 15 divisors.* 16 frequencies"),
        (gemma3_config(num_hidden_layers=6, layer_types=None), [("add_sliding_window", 8)],
         [("rope_freqs.weight", np.ones(16, np.float32))], "16 and 16 frequencies"),
    ],
    ids=["unknown", "no factor", "partial", "partial, qwen2", "few divisors", "divisors of two rotations"],
)  # fmt: skip
def test_lo_04_rotary_settings_that_cannot_be_meant_are_refused(tmp_path, config, metadata, tensors, message):
    path = write_gguf(tmp_path / "m.gguf", random_model(config), metadata=metadata, tensors=tensors)
    with pytest.raises(ConfigError, match=message):
        load(path)


def test_lo_04_rope_freqs_tensor_is_the_llama3_scaling(tmp_path):
    model = random_model(rand_config(rope_parameters=LLAMA3_ROPE))
    unscaled = 1 / 10000.0 ** (np.arange(0, 32, 2) / 32)
    divisors = (unscaled / model.model.rotary_emb.inv_freq.numpy()).astype(np.float32)
    path = write_gguf(tmp_path / "m.gguf", model, metadata=[THETA], tensors=[("rope_freqs.weight", divisors)])
    torch.testing.assert_close(
        Driver(load(path).decoder, 128).prefill(PROMPT, 64), reference_logits(model, PROMPT), **EXACT
    )


def test_lo_06_end_tokens_are_eos_and_eot(tmp_path):
    metadata = [("add_eos_token_id", 7), ("add_eot_token_id", 9)]
    path = write_gguf(tmp_path / "m.gguf", random_model(qwen2_config()), metadata=metadata)
    assert load(path).eos_token_ids == {7, 9}


def test_a_missing_tensor_is_named(tmp_path):
    file = GGUFFile(write_gguf(tmp_path / "m.gguf", random_model(rand_config())))
    file.metadata["llama.block_count"] = 3
    model = open_gguf(file)
    with pytest.raises(ConfigError, match=r"no tensor blk\.2\.attn_q\.weight"):
        Checkpoint(model.spec, model.names, model.source)


def test_unsupported_architectures_are_named(tmp_path):
    file = GGUFFile(write_gguf(tmp_path / "m.gguf", random_model(rand_config())))
    file.metadata["general.architecture"] = "mamba"
    with pytest.raises(ConfigError, match=r"mamba.*gemma3, llama, qwen2"):
        open_gguf(file)


def test_a_mixture_of_experts_is_refused(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", random_model(rand_config()), metadata=[("add_expert_count", 8)])
    with pytest.raises(ConfigError, match="mixture of experts"):
        load(path)


def test_missing_metadata_are_named(tmp_path):
    file = GGUFFile(write_gguf(tmp_path / "m.gguf", random_model(rand_config())))
    del file.metadata["llama.embedding_length"]
    with pytest.raises(ConfigError, match="embedding_length"):
        open_gguf(file)

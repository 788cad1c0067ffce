"""What is refused before a weight is read, and which tokens end a generation."""

import json
from types import SimpleNamespace

import pytest
import torch
from transformers import GenerationConfig

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.model.description import describe_model, eos_token_ids
from engine.model.dtypes import resolve_dtypes
from engine.model.hub import ResolvedModel
from engine.model.spec import tensor_shapes
from tests.helpers_models import FAMILIES, gemma3_config, rand_config, random_model, save_checkpoint

ENDOFTEXT, IM_END = 151643, 151645


def described(folder, **options):
    resolved = ResolvedModel("folder", folder, folder.name)
    return describe_model(resolved, EngineConfig(model=str(folder), **options), "cpu")


def rewrite_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("config", "generation", "tokenizer", "expected"),
    [
        (ENDOFTEXT, [ENDOFTEXT, IM_END], {ENDOFTEXT}, {ENDOFTEXT, IM_END}),
        (ENDOFTEXT, None, {IM_END}, {ENDOFTEXT, IM_END}),
        (ENDOFTEXT, IM_END, {ENDOFTEXT}, {ENDOFTEXT, IM_END}),
        (None, None, (), set()),
    ],
    ids=["a list in generation_config", "only the tokenizer", "an integer", "none at all"],
)
def test_lo_06_end_tokens_are_those_of_config_generation_config_and_tokenizer(config, generation, tokenizer, expected):
    generation_config = GenerationConfig(eos_token_id=generation)
    ids = eos_token_ids(rand_config(eos_token_id=config), generation_config, tokenizer)
    assert ids == expected


def test_lo_06_without_a_generation_config_the_config_alone_speaks(tmp_path):
    save_checkpoint(tmp_path, rand_config(eos_token_id=ENDOFTEXT % 256))
    (tmp_path / "generation_config.json").unlink()
    assert described(tmp_path).eos_token_ids() == {ENDOFTEXT % 256}


def test_lo_06_end_tokens_of_a_text_config_inside_another_count():
    outer = SimpleNamespace(get_text_config=lambda: gemma3_config(eos_token_id=[1, 106]))
    assert eos_token_ids(outer, None) == {1, 106}


def test_an_unknown_architecture_is_named_with_those_supported(tmp_path):
    save_checkpoint(tmp_path, rand_config())
    rewrite_config(tmp_path, architectures=["FrobnicateForCausalLM"], model_type="frobnicate")
    with pytest.raises(ConfigError, match=r"FrobnicateForCausalLM is not supported; supported: .*Gemma3ForCausalLM"):
        described(tmp_path)


def test_a_config_that_needs_code_of_its_own_is_refused(tmp_path):
    save_checkpoint(tmp_path, rand_config())
    rewrite_config(tmp_path, model_type="custom", auto_map={"AutoConfig": "configuration_custom.CustomConfig"})
    with pytest.raises(ConfigError, match=r"config\.json is not a usable configuration"):
        described(tmp_path)


def test_quantised_safetensors_are_refused(tmp_path):
    save_checkpoint(tmp_path, rand_config())
    rewrite_config(tmp_path, quantization_config={"quant_method": "awq", "bits": 4})
    with pytest.raises(ConfigError, match=r"quantised \(awq\)"):
        described(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_a_damaged_config_is_named(tmp_path, text):
    save_checkpoint(tmp_path, rand_config())
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"config\.json"):
        described(tmp_path)


def test_an_activation_we_lack_is_named(tmp_path):
    save_checkpoint(tmp_path, rand_config())
    rewrite_config(tmp_path, hidden_act="relu6")
    with pytest.raises(ConfigError, match="'relu6'"):
        described(tmp_path)


def test_a_bidirectional_gemma_is_refused(tmp_path):
    save_checkpoint(tmp_path, gemma3_config())
    rewrite_config(tmp_path, use_bidirectional_attention=True)
    with pytest.raises(ConfigError, match="use_bidirectional_attention"):
        described(tmp_path)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_shapes_of_a_spec_are_those_of_the_model(tmp_path, name):
    model = random_model(FAMILIES[name])
    model.save_pretrained(tmp_path)
    description = described(tmp_path)
    expected = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    found = {description.names.stored(name): shape for name, shape in tensor_shapes(description.spec).items()}
    assert found == expected


def test_dtypes_on_a_cpu():
    assert resolve_dtypes("float32", "cpu", "bfloat16").table == torch.float32
    for dtype in ("auto", "float16", "bfloat16", "int8"):
        dtypes = resolve_dtypes(dtype, "cpu", "bfloat16")
        assert (dtypes.activations, dtypes.kv_cache) == (torch.float32, torch.float32)


@pytest.mark.parametrize(
    ("machine", "causal", "checkpoint", "weights"),
    [
        ("x86_64", True, "float16", "float16"),
        ("x86_64", True, "float32", "bfloat16"),
        ("x86_64", True, None, "bfloat16"),
        ("x86_64", False, "bfloat16", "float32"),
        ("aarch64", True, "bfloat16", "float32"),
    ],
)
def test_weights_on_a_cpu_by_default(machine, causal, checkpoint, weights, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: machine)
    assert resolve_dtypes("auto", "cpu", checkpoint, causal=causal).weights == weights


def test_dtypes_on_a_gpu_follow_the_checkpoint():
    assert resolve_dtypes("auto", "cuda", "float16").activations == torch.float16
    assert resolve_dtypes("auto", "cuda", "float32").activations == torch.bfloat16
    assert resolve_dtypes("float32", "cuda", "float16").kv_cache == torch.float32
    with pytest.raises(ConfigError, match="dtype: int8"):
        resolve_dtypes("int8", "cuda", None)

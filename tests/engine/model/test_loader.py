"""Folders as they are found: tied heads, shards, stray files, damage."""

import json
import logging
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.model.hub import ResolvedModel
from engine.model.loader import load_model
from tests.engine.model.driver import Driver, load
from tests.helpers_models import (
    gemma3_config,
    is_greedy,
    opt_config,
    prompt,
    rand_config,
    reference,
    reference_logits,
    save_checkpoint,
)

PROMPT = prompt(20)
SHARDS = "model-0000{}-of-00003.safetensors"
INDEX = "model.safetensors.index.json"


def assert_equals(folder, model):
    decoder = load(folder).decoder
    logits = Driver(decoder, 32).prefill(PROMPT, 32)
    torch.testing.assert_close(logits, reference_logits(model, PROMPT), atol=1e-4, rtol=1e-4)
    (continuation,) = Driver(decoder, 32).generate([[1, 2, 3]], 16)
    assert is_greedy(model, [1, 2, 3], continuation)


def edit_tensors(path, **changes):
    """Replace tensors of a file, whose names have "__" for "."; None removes one."""
    tensors = load_file(path)
    for name, tensor in changes.items():
        name = name.replace("__", ".")
        if tensor is None:
            del tensors[name]
        else:
            tensors[name] = tensor.contiguous()
    save_file(tensors, path, metadata={"format": "pt"})


# ------------------------------------------------------------------------------------------------------ tied heads


def test_lo_01_tied_without_a_head(tmp_path):
    model = save_checkpoint(tmp_path, rand_config(tie_word_embeddings=True))
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    assert_equals(tmp_path, model)


def test_lo_01_tied_with_an_equal_head_stored(tmp_path, caplog):
    model = save_checkpoint(tmp_path, rand_config(tie_word_embeddings=True))
    edit_tensors(tmp_path / "model.safetensors", lm_head__weight=model.lm_head.weight.detach().clone())
    assert_equals(tmp_path, model)
    assert not caplog.records


def test_lo_01_tied_with_another_head_stored_uses_both_and_says_so(tmp_path, caplog):
    save_checkpoint(tmp_path, rand_config(tie_word_embeddings=True))
    edit_tensors(tmp_path / "model.safetensors", lm_head__weight=torch.randn(256, 64))
    with caplog.at_level(logging.WARNING, "engine"):
        assert_equals(tmp_path, reference(tmp_path))
    assert "lm_head.weight differs from model.embed_tokens.weight" in caplog.text


def test_lo_01_tied_with_only_the_head_stored(tmp_path):
    model = save_checkpoint(tmp_path, rand_config(tie_word_embeddings=True))
    head = model.lm_head.weight.detach().clone()
    edit_tensors(tmp_path / "model.safetensors", lm_head__weight=head, model__embed_tokens__weight=None)
    assert_equals(tmp_path, model)


def test_lo_01_untied_with_both_stored(tmp_path):
    assert_equals(tmp_path, save_checkpoint(tmp_path, rand_config(tie_word_embeddings=False)))


def test_lo_01_untied_without_a_head_is_refused(tmp_path):
    save_checkpoint(tmp_path, rand_config(tie_word_embeddings=False))
    edit_tensors(tmp_path / "model.safetensors", lm_head__weight=None)
    with pytest.raises(ConfigError, match=r"holds no tensor lm_head\.weight"):
        load(tmp_path)


def test_lo_01_gemma3_is_tied_unless_its_config_says_otherwise(tmp_path):
    model = save_checkpoint(tmp_path, gemma3_config())
    raw = json.loads((tmp_path / "config.json").read_text())
    del raw["tie_word_embeddings"]
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    assert_equals(tmp_path, model)


# ---------------------------------------------------------------------------------------------------------- shards


@pytest.fixture
def sharded(tmp_path):
    model = save_checkpoint(tmp_path, rand_config(), max_shard_size="200KB")
    names = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert names == [SHARDS.format(i) for i in (1, 2, 3)]
    return tmp_path, model


def test_lo_02_shards_equal_the_original(sharded):
    assert_equals(*sharded)


@pytest.mark.parametrize("name", ["extra.safetensors", "consolidated.safetensors"])
def test_lo_02_files_the_index_does_not_name_are_ignored(sharded, name, tmp_path_factory):
    folder, model = sharded
    other = tmp_path_factory.mktemp("other")
    save_checkpoint(other, rand_config(), seed=1)
    shutil.copy(other / "model.safetensors", folder / name)
    assert_equals(folder, model)


def test_lo_02_a_tensor_is_taken_from_the_file_the_index_assigns_it_to(sharded):
    folder, model = sharded
    assignment = json.loads((folder / INDEX).read_text())["weight_map"]
    name = next(name for name, file in assignment.items() if file == SHARDS.format(1))
    shape = load_file(folder / SHARDS.format(1))[name].shape
    edit_tensors(folder / SHARDS.format(3), **{name.replace(".", "__"): torch.randn(shape)})
    assert_equals(folder, model)


def test_lo_02_a_missing_shard_is_named(sharded):
    folder, _ = sharded
    (folder / SHARDS.format(2)).unlink()
    with pytest.raises(ConfigError, match=SHARDS.format(2)):
        load(folder)


def test_lo_02_a_name_of_the_index_that_is_in_no_file_is_named(sharded):
    folder, _ = sharded
    edit_tensors(folder / SHARDS.format(3), model__norm__weight=None)
    with pytest.raises(ConfigError, match=r"model\.norm\.weight.*00003"):
        load(folder)


def test_lo_02_a_truncated_shard_is_named(sharded):
    folder, _ = sharded
    path = folder / SHARDS.format(2)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ConfigError, match=rf"{SHARDS.format(2)}.*cut short"):
        load(folder)


def test_lo_02_a_damaged_index_is_named(sharded):
    folder, _ = sharded
    (folder / INDEX).write_text('{"metadata": {}')
    with pytest.raises(ConfigError, match="not a safetensors index"):
        load(folder)


# --------------------------------------------------------------------------------------------------------- damage


def test_lo_02_a_tensor_of_the_wrong_shape_is_named(tmp_path):
    save_checkpoint(tmp_path, rand_config())
    edit_tensors(tmp_path / "model.safetensors", model__layers__1__mlp__up_proj__weight=torch.randn(128, 65))
    with pytest.raises(ConfigError, match=r"layers\.1\.mlp\.up_proj\.weight.*\[128, 65\].*\[128, 64\]"):
        load(tmp_path)


def test_integer_weights_are_refused(tmp_path):
    save_checkpoint(tmp_path, rand_config())
    weight = torch.ones(128, 64, dtype=torch.int8)
    edit_tensors(tmp_path / "model.safetensors", model__layers__1__mlp__up_proj__weight=weight)
    with pytest.raises(ConfigError, match=r"up_proj\.weight.*int8"):
        load(tmp_path)


def test_lo_01_tensors_left_over_are_named(tmp_path, caplog):
    model = save_checkpoint(tmp_path, rand_config())
    edit_tensors(
        tmp_path / "model.safetensors",
        model__layers__0__surprise=torch.ones(3),
        model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(16),  # old checkpoints hold it; nobody reads it
    )
    with caplog.at_level(logging.WARNING, "engine"):
        assert_equals(tmp_path, model)
    assert "model.layers.0.surprise" in caplog.text
    assert "inv_freq" not in caplog.text


def test_pickle_weights_are_refused(tmp_path):
    save_checkpoint(tmp_path, rand_config())
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"pytorch_model\.bin.*safetensors"):
        load(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path):
    save_checkpoint(tmp_path, rand_config())
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"neither model\.safetensors nor"):
        load(tmp_path)


def test_names_without_the_models_prefix_are_known(tmp_path):
    model = save_checkpoint(tmp_path, opt_config())
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({name.removeprefix("model."): value for name, value in tensors.items()}, tmp_path / "model.safetensors")
    assert_equals(tmp_path, model)


def test_the_weights_outlive_their_file(tmp_path):
    model = save_checkpoint(tmp_path, rand_config())
    expected, decoder = reference_logits(model, PROMPT), load(tmp_path).decoder
    path = tmp_path / "model.safetensors"
    with path.open("r+b") as file:   # in place, as an update over a network mount would be
        file.write(bytes(path.stat().st_size))
    torch.testing.assert_close(Driver(decoder, 32).prefill(PROMPT, 32), expected, atol=1e-4, rtol=1e-4)


def test_on_a_gpu_a_tied_head_is_the_embedding_itself(tmp_path):
    save_checkpoint(tmp_path, rand_config(tie_word_embeddings=True))
    config = EngineConfig(model=str(tmp_path), dtype="bfloat16")
    decoder = load_model(ResolvedModel("folder", tmp_path, "tied"), config, "meta").decoder
    assert decoder._head._product.weight._base is decoder._embedding._table
    assert decoder._embedding._table.dtype is torch.bfloat16

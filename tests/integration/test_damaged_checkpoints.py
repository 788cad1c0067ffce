"""LO-01 and LO-02 from outside: weights that are not whole end the launcher, whose last line names file or tensor."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from serve_app.launcher.ports import free_port
from tests.helpers_models import rand_config, save_checkpoint
from tests.integration.launched import run_launcher, write_deployment
from tests.tiny_tokenizer import write_tiny_tokenizer

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]

SECOND, THIRD = (f"model-0000{number}-of-00003.safetensors" for number in (2, 3))
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    save_checkpoint(folder, rand_config(vocab_size=258), max_shard_size="200KB")
    write_tiny_tokenizer(folder)
    assert (folder / SECOND).is_file() and (folder / THIRD).is_file()
    return folder


def without_a_shard(folder: Path) -> str:
    (folder / SECOND).unlink()
    return SECOND


def with_a_tensor_only_in_the_index(folder: Path) -> str:
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["model.layers.2.mlp.up_proj.weight"] = THIRD
    (folder / INDEX).write_text(json.dumps(index))
    return "model.layers.2.mlp.up_proj.weight"


def with_a_tensor_of_another_shape(folder: Path) -> str:
    change_third(folder, torch.ones(65))
    return "model.norm.weight"


def without_a_tensor(folder: Path) -> str:
    change_third(folder, None)
    index = json.loads((folder / INDEX).read_text())
    del index["weight_map"]["model.norm.weight"]
    (folder / INDEX).write_text(json.dumps(index))
    return "model.norm.weight"


def with_a_shard_cut_short(folder: Path) -> str:
    path = folder / THIRD
    path.write_bytes(path.read_bytes()[:-64])
    return THIRD


def change_third(folder: Path, norm: torch.Tensor | None) -> None:
    tensors = load_file(folder / THIRD)
    assert tensors.pop("model.norm.weight").shape == (64,)
    if norm is not None:
        tensors["model.norm.weight"] = norm
    save_file(tensors, folder / THIRD, metadata={"format": "pt"})


@pytest.mark.parametrize(
    "damage",
    [
        without_a_shard, with_a_tensor_only_in_the_index, with_a_tensor_of_another_shape, without_a_tensor,
        with_a_shard_cut_short,
    ],
)  # fmt: skip
def test_lo_02_a_damaged_checkpoint_is_never_served(
    sharded: Path, tmp_path: Path, damage: Callable[[Path], str]
) -> None:
    folder = shutil.copytree(sharded, tmp_path / "model")
    named = damage(folder)
    result = run_launcher(str(write_deployment(tmp_path / "deployment.yaml", free_port(), model=str(folder))))
    assert result.returncode == 1
    assert "\nready " not in result.stdout + result.stderr
    assert named in result.stderr.strip().splitlines()[-1], result.stderr

"""Models of random weights: real shapes, reproducible tensors, and an engine that serves one without any file."""

import math

import pytest
import torch

from engine.build import build_core
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.model.description import describe_model
from engine.model.hub import ResolvedModel, resolve
from engine.model.shapes import SHAPES
from engine.model.spec import tensor_shapes
from engine.model.weights.checkpoint import Checkpoint
from tests.helpers import generation


def describe(shape, seed=0, dtype="float32"):
    model = f"random:{shape}"
    return describe_model(resolve(model), EngineConfig(model=model, seed=seed, dtype=dtype), "cpu")


@pytest.mark.parametrize(
    ("shape", "parameters"), [("llama-8b", 8_030_261_248), ("opt-13b", 12_853_473_280), ("qwen2.5-0.5b", 494_032_768)]
)
def test_a_shape_has_the_parameters_of_its_model(shape, parameters):
    description = describe(shape)
    assert sum(math.prod(shape) for shape in tensor_shapes(description.spec).values()) == parameters
    Checkpoint(description.spec, description.names, description.source)    # raises for a tensor missing or misshapen
    assert description.eos_token_ids() == frozenset()


def test_tensors_depend_on_seed_and_name_not_on_the_order_of_reading():
    source, again, other = describe("tiny").source, describe("tiny").source, describe("tiny", seed=1).source
    names = sorted(source.tensors)
    first = {name: source.read(name) for name in names}
    second = {name: again.read(name) for name in reversed(names)}
    assert all(torch.equal(first[name], second[name]) for name in names)
    assert not any(torch.equal(first[name], other.read(name)) for name in names)
    assert len({first[name].flatten()[:8].sum().item() for name in names}) == len(names)


def test_products_keep_variance_and_norms_lie_around_one():
    source = describe("tiny").source
    for name, stored in source.tensors.items():
        values = source.read(name)
        assert values.shape == stored.shape
        if values.dim() == 2:
            assert values.std().item() * math.sqrt(stored.shape[1]) == pytest.approx(1.0, abs=0.05), name
        else:
            assert values.mean().item() == pytest.approx(1.0, abs=0.05), name


def test_an_unknown_shape_is_told_the_known_ones():
    known = ", ".join(f"random:{shape}" for shape in SHAPES)
    with pytest.raises(ConfigError, match=f"random:llama-80b: there is no shape 'llama-80b' .*known: {known}"):
        resolve("random:llama-80b")
    resolved = resolve("random:tiny")
    assert (resolved.kind, resolved.name) == ("random", "random:tiny")


def test_a_folder_may_have_any_other_name(tmp_path):
    folder = tmp_path / "random"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert resolve(str(folder)) == ResolvedModel("folder", folder, "random")


def serve(seed):
    config = EngineConfig(
        model="random:tiny", device="cpu", dtype="float32", seed=seed, num_threads=1,
        kv_cache={"capacity_tokens": 256}, scheduler={"max_num_seqs": 4, "max_num_batched_tokens": 64},
    )  # fmt: skip
    core = build_core(config)
    core.add_request(generation("a", [1, 2, 3], max_tokens=12))
    outputs = [output for _ in range(14) if core.has_work for output in core.step()]
    assert outputs[-1].finish_reason == "length"
    return [token for output in outputs for token in output.token_ids]


def test_an_engine_serves_random_weights_and_the_seed_makes_them():
    tokens = serve(seed=0)
    assert len(tokens) == 12
    assert serve(seed=0) == tokens
    assert serve(seed=1) != tokens

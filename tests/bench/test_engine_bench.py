import json

import pytest

from bench import engine
from engine.config import EngineConfig
from engine.model.description import describe_model
from engine.model.hub import resolve


def describe(model, dtype):
    return describe_model(resolve(model), EngineConfig(model=model, dtype=dtype), "cpu")


def test_a_tiny_run_on_a_cpu_starts_and_finishes(tmp_path, capsys):
    arguments = ["--device", "cpu", "--tiny", "--dtype", "float32", "--results", str(tmp_path)]
    engine.run(engine.parser().parse_args(arguments))
    [path] = tmp_path.iterdir()
    saved = json.loads(path.read_text())
    assert saved["schema"] == "conveyor-engine/1"
    assert saved["config"]["model"] == "random:tiny"
    assert [(cell["batch"], cell["context"]) for cell in saved["cells"]] == [(1, 32), (4, 32), (1, 128), (4, 128)]
    for cell in saved["cells"]:
        assert cell["step_ms"] > 0 and cell["floor_ms"] > 0 and len(cell["all_ms"]) == 4
        assert cell["parts_ms"].keys() == set(engine.PARTS)
        assert cell["parts_ms"]["forward"] > 0
        assert cell["prefill_tokens_per_s"] > 0
    assert saved["did_not_fit"] == []
    assert f"saved {path}" in capsys.readouterr().out


def test_a_cell_that_does_not_fit_is_told_and_left_out(tmp_path, capsys):
    arguments = ["--device", "cpu", "--tiny", "--batches", "1", "32", "--contexts", "64", "--results", str(tmp_path)]
    engine.run(engine.parser().parse_args(arguments))
    [path] = tmp_path.iterdir()
    saved = json.loads(path.read_text())
    assert [cell["batch"] for cell in saved["cells"]] == [1]
    assert [cell["batch"] for cell in saved["did_not_fit"]] == [32]
    assert "does not fit the KV cache" in capsys.readouterr().out


def test_contexts_beyond_the_models_are_left_out():
    args = engine.parser().parse_args(["--contexts", "512", "2048"])
    assert {cell.context for cell in engine.cells(args, max_model_len=2048, budget=8192)} == {512}


KV = 2 * 2 * 2 * 32 * 4                                           # K and V, layers, heads, head_dim, float32


def test_a_step_reads_every_product_once_and_all_cached_tokens():
    layer = 64 * (128 + 64 + 64) + 128 * 64 + 3 * 64 * 128        # q, k, v; output; gate, up, down
    products = 2 * layer + 512 * 64                               # the head, and no embedding
    assert engine.step_bytes(describe("random:tiny", "float32"), 10) == products * 4 + 10 * KV


def test_groups_of_int8_are_read_whole_and_with_their_scales():
    num_rows = 2 * (128 + 64 + 64 + 64 + 128 + 128 + 64) + 512    # of at most a group each: q, k, v, output, MLP; head
    assert engine.step_bytes(describe("random:tiny", "int8"), 0) == num_rows * (128 + 4)


def test_a_tied_head_is_read_like_any_other():
    tied = describe("random:qwen2.5-0.5b", "float32")
    assert engine.step_bytes(tied, 0) == pytest.approx(494e6 * 4, rel=0.01)

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench import kernel_inputs, kernels
from bench.kernel_checks import checks, run_check
from bench.kernel_rows import goal_rows
from bench.timing import Peaks, chosen_device
from kernels import ops

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]


def test_every_op_is_checked_and_timed():
    assert {check.build().op for check in checks(CPU)} == set(ops.IMPLEMENTATIONS)
    untimed = {"swap_blocks"}            # moves at the speed of the bus to the host, which has no floor here
    assert {row.build().op for row in goal_rows(CPU, tiny=True)} == set(ops.IMPLEMENTATIONS) - untimed


def test_a_tiny_run_on_a_cpu_starts_and_finishes(tmp_path, capsys):
    kernels.main(kernels.parser().parse_args(["--device", "cpu", "--tiny", "--results", str(tmp_path)]))
    [path] = tmp_path.iterdir()
    saved = json.loads(path.read_text())
    assert path.name.endswith("-kernels-cpu.json")
    assert saved["schema"] == "conveyor-kernels/1"
    assert {"commit", "machine", "versions", "command"} <= saved.keys()
    assert [found["failure"] for found in saved["checks"]] == [None] * len(checks(CPU))
    rows = {row["name"]: row for row in saved["rows"]}
    assert list(rows) == [row.name for row in goal_rows(CPU, tiny=True)]
    assert all(row["median_us"] > 0 and row["floor_us"] > 0 and len(row["all_us"]) == 3 for row in rows.values())
    paged, base = rows["decode B64 L2k page 16"], rows["decode B64 L2k"]
    assert paged["ratio"] == pytest.approx(paged["median_us"] / base["median_us"])
    assert base["ratio"] == pytest.approx(base["median_us"] / base["floor_us"])
    printed = capsys.readouterr().out
    assert "prefill 8k causal" in printed and f"saved {path}" in printed


def test_a_wrong_kernel_is_found(monkeypatch, tmp_path):
    right = ops.rms_norm
    monkeypatch.setattr(ops, "rms_norm", lambda *args, **options: right(*args, **options) * 1.001)
    monkeypatch.setattr(kernels, "goal_rows", lambda device, tiny: [])
    findings = [run_check(check) for check in checks(CPU) if check.build().op == "rms_norm"]
    assert all("rms_norm largest error" in found.failure for found in findings)
    with pytest.raises(SystemExit):
        kernels.main(kernels.parser().parse_args(["--device", "cpu", "--tiny", "--results", str(tmp_path)]))


def test_a_stray_element_of_a_written_argument_is_found(monkeypatch):
    right = ops.add_rms_norm

    def stray(x, residual, *args, **options):
        out = right(x, residual, *args, **options)
        residual[3, 5] += 1.0
        return out

    monkeypatch.setattr(ops, "add_rms_norm", stray)
    [found] = [run_check(check) for check in checks(CPU) if check.build().op == "add_rms_norm"]
    assert "residual largest error" in found.failure


def test_floors_follow_the_stated_formulas():
    peaks = Peaks(bytes_per_s=4.3e12, flop_per_s=788e12)
    on = {"device": CPU, "dtype": torch.bfloat16}
    decode = kernel_inputs.attention([1] * 4, [2048] * 4, **on)
    kv, queries, tables = 4 * 2048 * 8 * 128 * 2 * 2, 4 * 4 * 32 * 128, 4 * 4 * 2048 / 64
    assert decode.num_bytes == kv + queries + tables
    assert peaks.floor_s(decode.num_bytes * 16, decode.flop * 16) == pytest.approx(125e-6, rel=0.02)    # B64 L2k
    chunk = kernel_inputs.attention([64], [256], **on)
    assert chunk.flop == 4 * 32 * 128 * (64 * 192 + 64 * 65 / 2)


def test_goals_are_those_of_the_specification():
    goals = {row.name: row.goal for row in goal_rows(CPU) if row.goal}
    assert goals["decode B64 L2k"] == 1.15
    assert goals["prefill 8k causal"] == 1.9
    assert all(goal == 1.15 for name, goal in goals.items() if "norm" in name or "_and_" in name)


def test_a_gpu_that_is_not_there_ends_in_one_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="finds no usable GPU"):
        chosen_device("cuda")


def test_the_gpu_benches_load_without_the_servers_packages():
    missing = ("ray", "starlette", "aiohttp", "gguf", "numba", "psutil", "prometheus_client", "grpc")
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({missing}))\n"
        "import bench.kernels, bench.engine\n"
        "from engine.config import EngineConfig\n"
        "from engine.model.description import describe_model\n"
        "from engine.model.hub import resolve\n"
        "from engine.text.tokenizer import load_tokenizer\n"
        "model = 'random:llama-8b'\n"
        "print(describe_model(resolve(model), EngineConfig(model=model), 'cuda').spec.num_layers)\n"
        "print(load_tokenizer(model).vocab_size)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert result.stdout == "32\n128256\n", result.stderr

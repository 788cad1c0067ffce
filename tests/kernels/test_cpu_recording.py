"""Recordings of CPU kernels: a replay computes what the calls would, from what lies at the same addresses then."""

import gc

import pytest
import torch

from kernels import ops
from kernels.cpu import recording
from kernels.cpu.embedding import embedding, pick_ids
from kernels.cpu.linear import pack
from kernels.cpu.recording import Workspace, empty, record
from kernels.cpu.threads import replay

WIDTH, INNER, VOCAB = 128, 256, 50


def rand(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Network:
    """Some layers as a decoder has them, on ids that stand at one address."""

    def __init__(self, dtype, num_layers=3, num_rows=4):
        self.table = rand(VOCAB, WIDTH).half()
        self.layers = [
            (rand(WIDTH, seed=i).abs(), pack(rand(2 * INNER, WIDTH, seed=i), rand(2 * INNER), dtype),
             pack(rand(WIDTH, INNER, seed=i), None, dtype))
            for i in range(num_layers)
        ]  # fmt: skip
        self.ids = torch.zeros(num_rows, dtype=torch.int64)
        self.source = torch.full((num_rows,), -1)
        self.sampled = torch.arange(VOCAB)

    def __call__(self, num_rows=None):
        ids = pick_ids(self.ids[:num_rows], self.source[:num_rows], self.sampled)
        residual = embedding(ids, self.table)
        x = ops.rms_norm(residual, self.layers[0][0], 1e-6)
        for weight, up, down in self.layers:
            x = ops.add_rms_norm(down(ops.silu_and_mul(up(x))), residual, weight, 1e-6)
        return x


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
def test_a_replay_computes_anew_from_what_its_inputs_hold(dtype):
    network = Network(dtype)
    result, tape = record(network, Workspace(8))
    assert torch.equal(result, network())
    for value in (7, 8):
        network.ids += value
        network.source[1] = value
        replay(tape)
        assert torch.equal(result, network())


def test_intermediate_results_share_memory_within_and_between_recordings():
    few, many = Network("int8", num_layers=2), Network("int8", num_layers=12)
    workspace = Workspace(8)
    record(few, workspace)
    before = {size: len(buffers) for size, buffers in workspace._buffers.items()}
    tapes = {rows: record(lambda rows=rows: many(rows), workspace) for rows in (1, 4, 2)}
    assert {size: len(buffers) for size, buffers in workspace._buffers.items()} == before
    many.ids += 3
    for rows, (result, tape) in tapes.items():
        replay(tape)
        assert torch.equal(result, many(rows))


def test_memory_of_what_is_alive_is_not_lent_twice():
    workspace = Workspace(4)
    first = workspace.empty((2, 16), "float32")
    view = torch.from_numpy(first)[1:].view(-1)
    del first
    gc.collect()
    other = workspace.empty((4, 16), "float32")
    assert not workspace.holds(view.numpy()) or view.data_ptr() not in range(
        other.ctypes.data, other.ctypes.data + other.nbytes
    )
    place = view.data_ptr() - 64
    del view
    gc.collect()
    assert workspace.empty((1, 16), "int32").ctypes.data == place


def test_arrays_of_a_call_that_nobody_else_holds_live_on_with_the_recording():
    x, weights = rand(2, WIDTH), [torch.full((WIDTH,), 2.0)]
    expected = ops.rms_norm(x * 3, weights[0], 1e-6)
    result, tape = record(lambda: ops.rms_norm(x, weights.pop(), 1e-6), Workspace(2))
    gc.collect()
    others = [torch.zeros(WIDTH) for _ in range(100)]
    x *= 3
    replay(tape)
    assert torch.equal(result, expected) and len(others) == 100


@pytest.mark.parametrize("other", [torch.relu, lambda x: x + 1, lambda x: x.t().contiguous(), lambda x: x.add_(1)])
def test_a_computation_with_other_ops_is_computed_and_not_recorded(other):
    x = rand(2, WIDTH)
    result, tape = record(lambda: other(ops.rms_norm(x, torch.ones_like(x[0]), 1e-6)), Workspace(2))
    assert tape is None and torch.equal(result, other(ops.rms_norm(x, torch.ones(WIDTH), 1e-6)))


def test_ops_that_only_look_at_data_differently_are_recorded():
    x = rand(4, WIDTH)
    weight = torch.ones(WIDTH // 2)

    def compute():
        return ops.rms_norm(x.view(8, -1)[2:6].unsqueeze(0)[0].detach(), weight, 1e-6)

    result, tape = record(compute, Workspace(8))
    x += 1
    replay(tape)
    assert torch.equal(result, compute())


def test_outside_a_recording_memory_is_its_callers():
    assert recording.current() is None
    assert empty((2, 3)).base is None


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_without_the_check_nothing_runs_before_the_replay(dtype):
    network, workspace = Network(dtype), Workspace(8)
    expected = network()
    result, tape = record(network, workspace, check=False)
    for buffers in workspace._buffers.values():
        for _, memory in buffers:
            assert not memory.any()                            # pages as the system gave them
    replay(tape)
    assert torch.equal(result, expected)


def test_a_computation_too_long_for_a_tape_is_computed_and_not_recorded(monkeypatch):
    monkeypatch.setattr(recording, "_TAPE_WORDS", 100)
    x, weight = rand(2, WIDTH), torch.ones(WIDTH)

    def compute():
        for _ in range(20):
            result = ops.rms_norm(x, weight, 1e-6)
        return result

    result, tape = record(compute, Workspace(2))
    assert tape is None and torch.equal(result, compute())


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("width", [1, 16, 33, 128])
def test_embedding_rows(dtype, width):
    table, ids = rand(20, width).to(dtype), torch.tensor([0, 19, 3, 3])
    assert torch.equal(embedding(ids, table), table[ids].float())

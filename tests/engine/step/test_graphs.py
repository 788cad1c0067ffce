from contextlib import contextmanager
from itertools import pairwise

import pytest
import torch

from engine.step import graphs as module
from engine.step.graphs import DecodeGraphs, cpu_batch_sizes, decode_batch_sizes
from kernels import ops

CPU = torch.device("cpu")


@pytest.mark.parametrize("max_num_seqs", [1, 2, 3, 7, 8, 64, 100, 256, 512, 1000])
def test_sizes_rise_to_the_largest_batch_and_waste_little(max_num_seqs):
    sizes = decode_batch_sizes(max_num_seqs)
    assert sizes[-1] == max_num_seqs
    assert list(sizes) == sorted(set(sizes))
    assert all(larger <= 2 * size for size, larger in pairwise(sizes))


def test_a_batch_takes_the_smallest_recording_that_holds_it():
    graphs = DecodeGraphs((4, 1, 8), CPU)
    assert [graphs.batch_size_for(count) for count in (1, 2, 4, 5, 8, 9)] == [1, 4, 4, 8, 8, None]


def test_without_recordings_no_batch_is_replayed():
    assert DecodeGraphs((), CPU).batch_size_for(1) is None


def test_a_cpu_has_a_recording_for_each_batch_size_it_is_worth():
    assert cpu_batch_sizes(3) == (1, 2, 3)
    assert cpu_batch_sizes(1000)[-1] == 64


def test_on_a_cpu_kernels_are_recorded_once_and_replayed():
    x, weight, calls = torch.ones(2, 32), torch.ones(32), []

    def compute():
        calls.append(1)
        return ops.rms_norm(x, weight, 0.0)

    graphs = DecodeGraphs((2,), CPU)
    graphs.record(2, compute)
    assert not calls
    for value in (1.0, 2.0, 3.0):
        weight.fill_(value)
        assert graphs.replay(2).flatten().tolist() == [value] * 64
    assert len(calls) == 1


def test_on_a_cpu_what_is_no_kernel_is_computed_each_time():
    value = torch.zeros(1)
    graphs = DecodeGraphs((1,), CPU)
    graphs.record(1, lambda: value + 1)
    for _ in range(3):
        value += 5
        assert graphs.replay(1).item() == value.item() + 1


class FakeCuda:
    """torch.cuda as far as recording needs it; what happens is noted."""

    def __init__(self, log):
        self.log = log

    def Stream(self):
        return self

    current_stream = Stream

    def wait_stream(self, stream):
        self.log.append("wait")

    def synchronize(self):
        self.log.append("synchronize")

    @contextmanager
    def stream(self, stream):
        yield

    def CUDAGraph(self):
        return self

    def replay(self):
        self.log.append("replay")

    @contextmanager
    def graph(self, graph, pool):
        self.log.append(f"capture into {pool}")
        yield
        self.log.append("captured")


def test_on_a_gpu_everything_is_compiled_before_the_capture_and_nothing_runs_after(monkeypatch):
    log = []
    monkeypatch.setattr("engine.step.graphs.torch.cuda", FakeCuda(log))
    result = torch.ones(1)

    def compute():
        log.append("compute")
        return result

    recorded = module._CudaGraph(compute, "pool")
    before = ["wait", "compute", "compute", "wait", "synchronize", "capture into pool", "compute", "captured"]
    assert log == before
    assert recorded() is result and recorded() is result
    assert log == [*before, "replay", "replay"]

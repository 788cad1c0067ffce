"""How long calls on a device take, and what the device itself can do: the floors that times are held against."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch

from kernels.cpu.large_pages import zeros

Call = Callable[[], object]
_GRAPH_FLOOR_S = 1e-3        # one replay lasts at least about this long, so that its start costs nothing
_READ_BYTES = 2**30          # several times the largest cache
_READ_ROUNDS = 9
_STATED = {"H200": (4.3e12, 788e12)}    # what the goals for this card are stated against: (bytes/s, FLOP/s)


@dataclass(frozen=True, slots=True)
class Peaks:
    """What a device reaches at best: of bytes moved and of 16-bit products (float32 on a CPU)."""

    bytes_per_s: float
    flop_per_s: float

    def floor_s(self, num_bytes: float, flop: float = 0.0) -> float:
        return max(num_bytes / self.bytes_per_s, flop / self.flop_per_s)


def seconds_per_call(calls: Sequence[Call], device: torch.device, *, rounds: int, floor_s: float = 0.0) -> list[float]:
    """Mean seconds a call, a figure for each round; `calls` are the same work on inputs of their own.

    On a GPU the calls are captured in a graph, as the engine's are: the host's part is not in the figure.
    """
    for call in calls:
        call()
    if device.type == "cuda":
        return _graph_seconds([*calls] * math.ceil(_GRAPH_FLOOR_S / max(floor_s * len(calls), 1e-5)), device, rounds)
    figures = []
    for _ in range(rounds):
        begun_s = time.perf_counter()
        for call in calls:
            call()
        figures.append((time.perf_counter() - begun_s) / len(calls))
    return figures


def _graph_seconds(calls: Sequence[Call], device: torch.device, rounds: int) -> list[float]:
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(rounds + 1)]
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize(device)
    return [begin.elapsed_time(end) / 1e3 / len(calls) for begin, end in pairwise(marks)]


def read_bytes_per_s(num_bytes: int = _READ_BYTES, *, num_threads: int | None = None) -> float:
    """What a processor reads of memory now, by sums of an array that lies in large pages, as weights do."""
    values = torch.from_numpy(zeros(num_bytes // 4, np.float32)).fill_(1)     # or all of it would be one page of zeros
    threads_before = torch.get_num_threads()
    torch.set_num_threads(num_threads or threads_before)
    try:
        return num_bytes / statistics.median(seconds_per_call([values.sum], torch.device("cpu"), rounds=_READ_ROUNDS))
    finally:
        torch.set_num_threads(threads_before)


def _copied_bytes_per_s(num_bytes: int, device: torch.device) -> float:
    """Each counted twice: it is read and written."""
    source = torch.ones(num_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * num_bytes / statistics.median(seconds_per_call([lambda: target.copy_(source)], device, rounds=10))


def measured_peaks(device: torch.device, *, tiny: bool = False) -> Peaks:
    """By a large sum, on a GPU a large copy, and by a large product."""
    size = 2**24 if tiny else _READ_BYTES
    bytes_per_s = read_bytes_per_s(size) if device.type == "cpu" else _copied_bytes_per_s(size, device)
    width = 512 if tiny else 8192
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    left, right = (torch.randn(width, width, device=device, dtype=dtype) for _ in range(2))
    product_s = statistics.median(seconds_per_call([lambda: left @ right], device, rounds=10))
    return Peaks(bytes_per_s, 2 * width**3 / product_s)


def stated_peaks(device: torch.device) -> Peaks | None:
    """The peaks that this card's goals are stated against, where they are."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((Peaks(*peaks) for card, peaks in _STATED.items() if card in name), None)


def chosen_device(name: str) -> torch.device:
    """The device of that name; exits where there is none."""
    if name == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--device cuda: torch finds no usable GPU here; try --device cpu --tiny")
    return torch.device(name, 0) if name == "cuda" else torch.device(name)

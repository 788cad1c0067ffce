"""What this machine does without us: products, kernels of torch, the interpreter. Seconds, for ratios only."""

import re
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from engine.model.spec import ModelSpec, tensor_shapes

_LAYERS_HELD = 4                                   # more than caches hold; the other layers are as long


def median_s(call: Callable[[], object], rounds: int) -> float:
    """Median seconds of a call, after one that is not timed."""
    call()
    times = []
    for _ in range(rounds):
        begun_s = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun_s)
    return statistics.median(times)


def least_s(*calls: Callable[[], object], rounds: int = 20) -> list[float]:
    """Least seconds of each call, after one that is not timed, the calls taking turns.

    For calls of a few milliseconds: whatever else runs on the machine adds to them, and nothing takes away.
    """
    for call in calls:
        call()
    least = [float("inf")] * len(calls)
    for _ in range(rounds):
        for place, call in enumerate(calls):
            begun_s = time.perf_counter()
            call()
            least[place] = min(least[place], time.perf_counter() - begun_s)
    return least


class Products:
    """A model's matrices in float32, by torch: what its products take for so many rows."""

    def __init__(self, spec: ModelSpec) -> None:
        self._share = spec.num_layers / min(_LAYERS_HELD, spec.num_layers)
        self._layers = [
            torch.full(shape, 0.01)
            for name, shape in tensor_shapes(spec).items()
            if len(shape) == 2 and (layer := re.match(r"layers\.(\d+)\.", name)) and int(layer[1]) < _LAYERS_HELD
        ]
        self._head = torch.full((spec.vocab_size, spec.embedding_width), 0.01)

    def seconds(self, num_rows: int, num_sampled: int) -> float:
        """All layers for `num_rows`, and the head for `num_sampled`."""
        return self._share * _products_s(self._layers, num_rows) + _products_s([self._head], num_sampled)


def _products_s(weights: list[Tensor], num_rows: int) -> float:
    inputs = {weight.shape[1]: torch.full((num_rows, weight.shape[1]), 0.5) for weight in weights}
    return median_s(lambda: [torch.mm(inputs[weight.shape[1]], weight.T) for weight in weights], rounds=3)


class _Item(NamedTuple):
    key: str
    value: int


def python_work() -> int:
    """A fixed piece of the interpreter's work, of the kind a step loop is: objects, dicts, tuples, calls."""
    found: dict[str, _Item] = {}
    total = 0
    for index in range(2000):
        item = _Item(str(index), index)
        found[item.key] = item
        total += len(found) + item.value % 7
    ordered = sorted(found.values(), key=lambda item: -item.value)
    return total + sum(item.value for item in ordered if item.key in found)

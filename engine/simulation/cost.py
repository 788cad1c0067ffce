"""What a step costs on a device: a roofline of the model's parts over the step's exact composition.

    step = host + kernels + dense products + attention + head

Each part takes the longer of its bytes over the bandwidth and its FLOP over the arithmetic (roofline: Williams,
Waterman, Patterson, CACM 2009). Dense products read their weights once a step, whatever the rows. Attention is taken
request by request, for prompts are bound by arithmetic while decodes beside them are bound by memory. Activations are
not counted: they stay in cache between kernels at the row counts of decodes, and hide behind arithmetic at those of
prompts.
"""

import math
from collections import Counter
from typing import Protocol

from engine.model.spec import ModelSpec, tensor_shapes
from engine.simulation.composition import StepRows, query_keys
from engine.simulation.devices import DeviceModel

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
_KERNELS_PER_LAYER = 9        # two norms, QKV, rope and cache write, attention, output, gate and up, activation, down
_KERNELS_PER_STEP = 6         # embedding, final norm, gather, head, penalties, sampler
_LOGITS_PASSES = 3            # float32 logits are written, and read for the maximum and for the draw


class StepCost(Protocol):
    def step_s(self, rows: StepRows) -> float:
        """Seconds that a device takes for a step of `rows`."""


class Roofline:
    """Step times of one model on one device."""

    def __init__(self, spec: ModelSpec, device: DeviceModel, *, weights: str, kv_cache: str) -> None:
        """`weights` and `kv_cache` are dtypes by name. Raises KeyError for one that the device has no peak for."""
        self.dense_weights = num_dense_weights(spec)
        self.head_weights = spec.vocab_size * spec.embedding_width
        self._weight_item = ITEM_BYTES[weights]
        self._kv_item = ITEM_BYTES[kv_cache]
        self._logits_bytes = 4 * _LOGITS_PASSES * spec.vocab_size
        self._windows = tuple(sorted(Counter(layer.window for layer in spec.layers).items()))   # (window, layers)
        self._spec = spec
        self._bytes_per_s = device.bytes_per_s * device.bytes_efficiency
        self._flop_per_s = device.flop_per_s[weights] * device.flop_efficiency
        self._key_s = 2 * spec.kv_size * self._kv_item / (device.bytes_per_s * device.attention_bytes_efficiency)
        self._query_key_s = 4 * spec.query_size / (device.flop_per_s[weights] * device.attention_flop_efficiency)
        self._fixed_s = device.step_s + device.kernel_s * (_KERNELS_PER_LAYER * spec.num_layers + _KERNELS_PER_STEP)

    def step_s(self, rows: StepRows) -> float:
        return self._fixed_s + self.dense_s(rows.num_rows) + self.attention_s(rows) + self.head_s(rows.num_sampled)

    def dense_s(self, num_rows: int) -> float:
        """The products of all layers for `num_rows` rows, and the write of their keys and values."""
        memory_s = self.dense_weights * self._weight_item / self._bytes_per_s
        arithmetic_s = 2 * self.dense_weights * num_rows / self._flop_per_s
        written = 2 * self._spec.kv_size * self._spec.num_layers * self._kv_item * num_rows
        return max(memory_s, arithmetic_s) + written / self._bytes_per_s

    def head_s(self, num_sampled: int) -> float:
        if not num_sampled:
            return 0.0
        num_bytes = self.head_weights * self._weight_item + self._logits_bytes * num_sampled
        return max(num_bytes / self._bytes_per_s, 2 * self.head_weights * num_sampled / self._flop_per_s)

    def attention_s(self, rows: StepRows) -> float:
        """All layers: each request's keys and values read once, each pair of row and key multiplied twice."""
        total_s = 0.0
        single_s = max(self._key_s, self._query_key_s)
        for window, num_layers in self._windows:
            layer_s = _single_keys(rows, window) * single_s
            for num_rows, start in rows.chunks:
                read = num_rows + (min(start, window - 1) if window else start)
                layer_s += max(read * self._key_s, query_keys(num_rows, start, window) * self._query_key_s)
            total_s += num_layers * layer_s
        return total_s


def _single_keys(rows: StepRows, window: int) -> int:
    if not window:
        return rows.num_single_keys
    return sum(min(start + 1, window) for start in rows.single_starts)


def num_dense_weights(spec: ModelSpec) -> int:
    """Elements of every product that each row passes through: all matrices but the tables and the head."""
    apart = ("embedding.weight", "positions.weight", "lm_head.weight")
    return sum(
        math.prod(shape) for name, shape in tensor_shapes(spec).items() if len(shape) == 2 and name not in apart
    )

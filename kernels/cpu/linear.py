"""Linear layers on a CPU: one packed weight each, as float32, float16 or int8, and one product.

A row of the product has the same bits whatever rows are beside it. BLAS and FBGEMM cut the rows of a batch into
tiles, and tiles of some heights round differently; each form pads the row count so that only heights that agree occur.

float32   torch's own product, row count padded to a multiple of 4
float16   FBGEMM, weights rounded to float16 (relative error 2e-4), sums in float32; on AVX2 the one-row tile differs
          from the others, and row counts that are multiples of 3 never leave one
int8      FBGEMM, weights with a scale per output channel, activations with one per row (never per batch: one
          request's outlier must not change another's answer); relative error 1e-2
"""

import functools
import warnings
from abc import ABC, abstractmethod
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

WeightDtype = Literal["float32", "float16", "int8"]

_QUANTIZED: Any = torch.ops.quantized
_SMALLEST = torch.finfo(torch.float32).tiny  # a scale for rows of zeros


def storage_dtype(dtype: WeightDtype) -> WeightDtype:
    """The form `pack` really uses here: float32 where torch has no FBGEMM or no longer the product."""
    product = {
        "float32": "",
        "float16": "linear_dynamic_fp16",
        "int8": "linear_with_input_q_dq_qweight_dq_output_fp32",
    }[dtype]
    usable = torch.backends.quantized.engine in ("fbgemm", "x86") and hasattr(_QUANTIZED, product)
    return dtype if usable else "float32"


def weight_bytes(num_outputs: int, num_inputs: int, dtype: WeightDtype) -> int:
    """The memory that packing a [num_outputs, num_inputs] weight takes, without a bias."""
    dtype = storage_dtype(dtype)
    if dtype == "float32":
        return 4 * num_outputs * num_inputs
    if dtype == "float16":  # FBGEMM allocates whole tiles of 16 outputs x 512 inputs
        return 2 * _round_up(num_outputs, 16) * _round_up(num_inputs, 512)
    return num_outputs * (num_inputs + 64)  # an upper bound: tile padding, scales, zero points, sums


class PackedLinear(ABC):
    """A linear layer in its packed form: x [T, K] float32 -> [T, N] float32."""

    dtype: WeightDtype

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.num_outputs, self.num_inputs = weight.shape
        self.nbytes = weight_bytes(self.num_outputs, self.num_inputs, self.dtype)
        self.nbytes += 0 if bias is None else 4 * bias.numel()

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor: ...


def pack(weight: Tensor, bias: Tensor | None, dtype: WeightDtype) -> PackedLinear:
    """Packs a weight [N, K] (any float dtype) and its bias [N]; the caller then drops its own copy.

    float16 refuses weights beyond its range: saturating would serve another model without a word.
    """
    forms: dict[WeightDtype, type[PackedLinear]] = {
        "float32": _Float32Linear, "float16": _Float16Linear, "int8": _Int8Linear,
    }  # fmt: skip
    return forms[storage_dtype(dtype)](weight.detach(), None if bias is None else bias.detach().float())


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def _pad_rows(x: Tensor, multiple: int) -> Tensor:
    missing = -x.shape[0] % multiple
    return pad(x, (0, 0, 0, missing)) if missing else x


class _Float32Linear(PackedLinear):
    dtype = "float32"

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        self._weight, self._bias = weight.float().contiguous(), bias

    def __call__(self, x: Tensor) -> Tensor:
        return linear(_pad_rows(x.contiguous(), 4), self._weight, self._bias)[: x.shape[0]]


class _Float16Linear(PackedLinear):
    dtype = "float16"

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        limit, (low, high) = torch.finfo(torch.float16).max, map(float, weight.aminmax())
        if not (low >= -limit and high <= limit):
            raise ValueError(f"float16 weights reach ±{limit:.0f}, got {low} to {high}; float32 holds this weight")
        self._packed = _QUANTIZED.linear_prepack_fp16(weight.float().contiguous(), bias)

    def __call__(self, x: Tensor) -> Tensor:
        rows = _pad_rows(x.contiguous(), float16_row_multiple())
        out: Tensor = _QUANTIZED.linear_dynamic_fp16(rows, self._packed)
        return out[: x.shape[0]]


class _Int8Linear(PackedLinear):
    dtype = "int8"

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        self._bias = bias
        self._packed = _pack_int8(weight.float(), _int8_levels())

    def __call__(self, x: Tensor) -> Tensor:
        out = _multiply_int8(x, self._packed)
        return out if self._bias is None else out.add_(self._bias)


def _pack_int8(weight: Tensor, levels: int) -> Any:
    low, high = weight.aminmax(dim=1)
    scales = torch.maximum(-low, high).clamp_min(_SMALLEST) / levels
    steps = torch.empty(weight.shape, dtype=torch.int8)
    for rows in torch.arange(weight.shape[0]).split(4096):  # keeps the temporaries small
        steps[rows] = (weight[rows] / scales[rows, None]).round_().to(torch.int8)
    zeros = torch.zeros(weight.shape[0], dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch announces the end of quantized tensors; FBGEMM wants one
        quantized = torch._make_per_channel_quantized_tensor(steps, scales.double(), zeros, 0)
    return _QUANTIZED.linear_prepack(quantized, None)


def _multiply_int8(x: Tensor, packed: Any) -> Tensor:
    """The product of rows scaled into [-1, 1], where one step of 1/127 fits them all, scaled back."""
    scales = x.abs().amax(dim=1, keepdim=True).clamp_min_(_SMALLEST)
    out: Tensor = _QUANTIZED.linear_with_input_q_dq_qweight_dq_output_fp32(x / scales, 1 / 127, 128, packed)
    return out.mul_(scales)


@functools.cache
def float16_row_multiple() -> int:
    """1 where FBGEMM's one-row tile rounds as the others do, else 3. Asked of the host, not of a list of hosts."""
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(64, 320, generator=generator), torch.randn(6, 320, generator=generator)
    packed = _QUANTIZED.linear_prepack_fp16(weight, None)
    batch = _QUANTIZED.linear_dynamic_fp16(x, packed)
    return 1 if torch.equal(_QUANTIZED.linear_dynamic_fp16(x[:1], packed), batch[:1]) else 3


@functools.cache
def _int8_levels() -> int:
    """The largest quantised weight: 127 with VNNI. Without, FBGEMM adds pairs of products in 16 bits, which
    saturate; 255 * 63 * 2 still fits. A product of ones tells which."""
    ones = _multiply_int8(torch.ones(1, 512), _pack_int8(torch.ones(16, 512), 127))
    return 127 if (ones - 512).abs().max().item() < 1 else 63

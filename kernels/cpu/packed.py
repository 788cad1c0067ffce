"""PackedLinear: a linear layer in the form that one product of a CPU reads."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal, Protocol

from torch import Tensor

Gate = Literal["silu", "gelu", "gelu_tanh"]
WeightDtype = Literal["float32", "float16", "bfloat16", "int8"]


class Rows(Protocol):
    """A weight [N, K] of any float dtype that is read some rows at a time, such as a Tensor."""

    @property
    def shape(self) -> Sequence[int]: ...

    def __getitem__(self, rows: slice, /) -> Tensor: ...


class PackedLinear(ABC):
    """x [T, K] float32 -> [T, N] float32, from a weight [N, K], which it does not keep.

    With a gate, the upper half of a weight [2 · N, K] makes gates, and its lower half what they gate.
    """

    dtype: ClassVar[WeightDtype]

    def __init__(self, weight: Rows, bias: Tensor | None, gate: Gate | None = None) -> None:
        num_rows, self.num_inputs = weight.shape
        self.num_outputs = num_rows if gate is None else num_rows // 2
        self.nbytes = self.weight_bytes(num_rows, self.num_inputs) + (0 if bias is None else 4 * bias.numel())

    @staticmethod
    @abstractmethod
    def weight_bytes(num_rows: int, num_inputs: int) -> int:
        """What a packed weight takes, without a bias."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor: ...

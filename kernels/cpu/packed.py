"""PackedLinear: a linear layer in the form that one product of a CPU reads."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal, Protocol

from torch import Tensor

WeightDtype = Literal["float32", "float16", "bfloat16", "int8"]


class Rows(Protocol):
    """A weight [N, K] of any float dtype that is read some rows at a time, such as a Tensor."""

    @property
    def shape(self) -> Sequence[int]: ...

    def __getitem__(self, rows: slice, /) -> Tensor: ...


class PackedLinear(ABC):
    """x [T, K] float32 -> [T, N] float32, from a weight [N, K], which it does not keep."""

    dtype: ClassVar[WeightDtype]

    def __init__(self, weight: Rows, bias: Tensor | None) -> None:
        self.num_outputs, self.num_inputs = weight.shape
        self.nbytes = self.weight_bytes(self.num_outputs, self.num_inputs) + (0 if bias is None else 4 * bias.numel())

    @staticmethod
    @abstractmethod
    def weight_bytes(num_outputs: int, num_inputs: int) -> int:
        """What a packed weight takes, without a bias."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor: ...

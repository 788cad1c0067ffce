"""DeviceModel: what the roofline knows of an accelerator, each number with its source."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.config import nearest
from engine.errors import ConfigError
from engine.simulation.measured import MeasuredDevice, read_measured

_PREFIX = "sim:"
_MEASURED = "measured:"
_MiB = 2**20


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """An accelerator as bandwidth, arithmetic, memory and what each step and each kernel costs beside them.

    Peaks are the vendor's: dense (no sparsity) matrix products, memory as the driver reports it. Efficiencies are the
    share of a peak that kernels reach.
    """

    name: str
    memory_bytes: int
    bytes_per_s: float
    flop_per_s: Mapping[str, float]            # dtype -> peak
    bytes_efficiency: float = 4.3 / 4.8        # an H200's large copy over its peak (`bench.timing`); assumed of all
    flop_efficiency: float = 788 / 989         # the same of a large bfloat16 product
    attention_bytes_efficiency: float = 4.3 / 4.8 / 1.15   # a goal: decode within 1.15 of the copy (docs/kernels.md)
    attention_flop_efficiency: float = 788 / 989 / 1.9     # a goal: a causal prompt within 1.9 of the product
    kernel_s: float = 2e-6                     # assumed: from one kernel to the next inside a captured graph
    step_s: float = 0.5e-3                     # assumed: what the host adds to a step that it cannot overlap with one

    def __post_init__(self) -> None:
        for name in ("bytes", "flop", "attention_bytes", "attention_flop"):
            if not 0 < (share := getattr(self, f"{name}_efficiency")) <= 1:
                raise ValueError(f"{name}_efficiency is {share}; it is a share of the peak, in (0, 1]")


def _flop_per_s(half: float, single: float) -> dict[str, float]:
    return {"float16": half, "bfloat16": half, "float32": single}


# Sources: NVIDIA A100, H100, H200 and L4 Tensor Core GPU datasheets (SXM forms; figures "with sparsity" halved),
# AMD Instinct MI300X datasheet. Memory: the total that nvidia-smi and rocm-smi show.
_DEVICES = (
    DeviceModel("a100-40gb", 40_536 * _MiB, 1.555e12, _flop_per_s(312e12, 19.5e12)),
    DeviceModel("a100-80gb", 81_251 * _MiB, 2.039e12, _flop_per_s(312e12, 19.5e12)),
    DeviceModel("h100", 81_559 * _MiB, 3.35e12, _flop_per_s(989e12, 67e12)),
    DeviceModel("h200", 143_771 * _MiB, 4.8e12, _flop_per_s(989e12, 67e12)),
    DeviceModel("l4", 23_034 * _MiB, 300e9, _flop_per_s(121e12, 30.3e12)),
    DeviceModel("mi300x", 196_592 * _MiB, 5.3e12, _flop_per_s(1307e12, 163.4e12)),
)


def device_names() -> tuple[str, ...]:
    return tuple(device.name for device in _DEVICES)


def parse_device(name: str) -> DeviceModel | MeasuredDevice:
    """The device of `a100-40gb`, `sim:a100-40gb` or `measured:<file>`, the JSON of a calibration.

    Raises ConfigError, with the nearest name, for another, and for a file that does not hold a calibration.
    """
    name = name.removeprefix(_PREFIX)
    if name.startswith(_MEASURED):
        return read_measured(Path(name.removeprefix(_MEASURED)))
    for device in _DEVICES:
        if device.name == name.lower():
            return device
    raise ConfigError(
        f"device: there is no simulated device '{name}': {nearest(name.lower(), device_names())}"
        f" (known: {', '.join(device_names())} and {_MEASURED}<file>)"
    )

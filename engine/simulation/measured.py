"""MeasuredDevice: step times fitted to a real engine on one machine, as a calibration leaves them (JSON).

    step = Σ coefficient · feature

Every coefficient is seconds per unit and not negative, so a larger step never costs less.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.errors import ConfigError
from engine.simulation.composition import StepRows

SCHEMA = "conveyor-device/1"


@dataclass(frozen=True, slots=True)
class RowCount:
    """How many rows a product computes for the rows it is given."""

    multiple: int = 1          # it pads them to a multiple of this (`kernels.cpu.linear`)
    floor: int = 1             # fewer take as long as this many: reading the weights decides, not the arithmetic

    def __call__(self, num_rows: int) -> int:
        return max(-(-num_rows // self.multiple) * self.multiple, self.floor) if num_rows else 0


def features(rows: StepRows, computed: RowCount) -> dict[str, float]:
    """What a step's time is made of on a processor, where products are bound by arithmetic from a few rows on."""
    return {
        "step": 1,
        "dense_row": computed(rows.num_rows),
        "head": rows.num_sampled > 0,
        "head_row": computed(rows.num_sampled),    # what sampling costs a row lies here too
        "key": rows.num_keys,                      # read and gathered
        "query_key": rows.num_query_keys,          # multiplied
        "entry": rows.num_entries,                 # prepared
    }


@dataclass(frozen=True, slots=True)
class MeasuredDevice:
    """One model on one machine: valid for that model alone, and for step sizes like those it was fitted to."""

    name: str
    model: str                                     # as in the YAML
    dtype: str                                     # of the weights, as resolved
    memory_bytes: int
    row_count: RowCount
    coefficients: Mapping[str, float]              # feature -> seconds a unit
    source: Mapping[str, Any]                      # machine, versions, command, workload, quality of the fit

    def step_s(self, rows: StepRows) -> float:
        found = features(rows, self.row_count)
        return sum(coefficient * found[name] for name, coefficient in self.coefficients.items())

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA, **asdict(self)}


def read_measured(path: Path) -> MeasuredDevice:
    """The device that a calibration wrote to `path`. Raises ConfigError if that is not what the file holds."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"device: {path} cannot be read: {error}") from None
    if not isinstance(values, dict) or values.pop("schema", None) != SCHEMA:
        raise ConfigError(f"device: {path} is not the JSON of a calibration ({SCHEMA})")
    try:
        device = MeasuredDevice(**{**values, "row_count": RowCount(**values["row_count"])})
    except (KeyError, TypeError) as error:
        raise ConfigError(f"device: {path} is not a calibration: {error}") from None
    if unknown := device.coefficients.keys() - features(StepRows(0, 0, 0, ()), device.row_count).keys():
        raise ConfigError(f"device: {path} has coefficients of unknown features: {', '.join(sorted(unknown))}")
    return device

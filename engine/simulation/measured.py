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


def features(rows: StepRows, row_multiple: int = 1) -> dict[str, float]:
    """What a step's time is made of on a processor, where products are bound by arithmetic.

    `row_multiple`: products pad their rows to a multiple of this (`kernels.cpu.linear`).
    """
    dense_rows, head_rows = (-(-count // row_multiple) * row_multiple for count in (rows.num_rows, rows.num_sampled))
    return {
        "step": 1.0,
        "dense_row": dense_rows,
        "head": float(rows.num_sampled > 0),
        "head_row": head_rows,
        "key": rows.num_keys,                      # read and gathered
        "query_key": rows.num_query_keys,          # multiplied
        "entry": rows.num_entries,             # prepared, and what its output costs
    }


@dataclass(frozen=True, slots=True)
class MeasuredDevice:
    """One model on one machine: valid for that model alone, and for step sizes like those it was fitted to."""

    name: str
    model: str                                     # as in the YAML
    dtype: str                                     # of the weights, as resolved
    memory_bytes: int
    row_multiple: int
    coefficients: Mapping[str, float]              # feature -> seconds a unit
    source: Mapping[str, Any]                      # machine, versions, command, workload, quality of the fit

    def step_s(self, rows: StepRows) -> float:
        found = features(rows, self.row_multiple)
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
        device = MeasuredDevice(**values)
    except TypeError as error:
        raise ConfigError(f"device: {path}: {error}") from None
    if unknown := device.coefficients.keys() - features(StepRows(0, 0, 0, ())).keys():
        raise ConfigError(f"device: {path} has coefficients of unknown features: {', '.join(sorted(unknown))}")
    return device

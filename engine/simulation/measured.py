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


@dataclass(frozen=True, slots=True)
class Products:
    """The model's matrix products: every row passes through the layers', a row that samples through the head's too."""

    dense_weights: int         # elements
    head_weights: int
    row_count: RowCount

    def num_products(self, rows: StepRows) -> int:
        """Multiplications of a weight and an activation."""
        dense_rows, head_rows = self.row_count(rows.num_rows), self.row_count(rows.num_sampled)
        return self.dense_weights * dense_rows + self.head_weights * head_rows


def features(rows: StepRows, products: Products) -> dict[str, float]:
    """What a step's time is made of on a processor, where products are bound by arithmetic from a few rows on.

    Layers and head are one feature, in the ratio of their weights: in most steps all rows sample, and a fit could
    not tell them apart.
    """
    return {
        "step": 1,
        "product": products.num_products(rows),
        "key": rows.num_keys,                      # read and gathered
        "query_key": rows.num_query_keys,          # multiplied
        "entry": rows.num_entries,                 # prepared, sampled
    }


@dataclass(frozen=True, slots=True)
class MeasuredDevice:
    """One model on one machine: valid for that model alone, and for step sizes like those it was fitted to."""

    name: str
    model: str                                     # as in the YAML
    dtype: str                                     # of the weights, as resolved
    memory_bytes: int
    products: Products
    coefficients: Mapping[str, float]              # feature -> seconds a unit
    source: Mapping[str, Any]                      # machine, versions, command, workload, quality of the fit

    def step_s(self, rows: StepRows) -> float:
        found = features(rows, self.products)
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
        products = dict(values["products"])
        products["row_count"] = RowCount(**products["row_count"])
        device = MeasuredDevice(**{**values, "products": Products(**products)})
    except (KeyError, TypeError) as error:
        raise ConfigError(f"device: {path} is not a calibration: {error}") from None
    if unknown := device.coefficients.keys() - features(StepRows(0, 0, 0, ()), device.products).keys():
        raise ConfigError(f"device: {path} has coefficients of unknown features: {', '.join(sorted(unknown))}")
    return device

"""Fits a device's step times: non-negative coefficients that bring the relative errors down, outliers or not."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from engine.simulation.composition import StepRows
from engine.simulation.measured import Products, RowCount, features

Features = Callable[[StepRows], Mapping[str, float]]
_ROUNDS = 30                  # of re-weighting; the fit moves by less than a thousandth long before
_FLOORS = range(1, 17)         # of rows


@dataclass(frozen=True, slots=True)
class TimedStep:
    """What one step of a real engine computed, and how long it took."""

    rows: StepRows
    duration_s: float


def fit(steps: Sequence[TimedStep], features_of: Features) -> dict[str, float]:
    """Coefficients (feature -> seconds a unit, none negative) with the least sum of relative errors, not squared.

    A machine's hiccups make some steps much too long; least squares would follow them. Least absolute errors come
    from least squares, re-weighted by the errors of the round before (iteratively re-weighted least squares).
    Features that get nothing are left out.
    """
    rows = [features_of(step.rows) for step in steps]
    names = list(rows[0])
    durations_s = np.array([step.duration_s for step in steps])
    relative = np.array([[row[name] for name in names] for row in rows]) / durations_s[:, None]
    weights, found = np.ones(len(steps)), np.zeros(len(names))
    for _ in range(_ROUNDS):
        found = non_negative_least_squares(relative * weights[:, None], weights)
        errors = np.abs(relative @ found - 1)
        weights = 1 / np.sqrt(np.maximum(errors, 1e-3))
    return {name: float(value) for name, value in zip(names, found, strict=True) if value > 0}


def with_best_floor(steps: Sequence[TimedStep], products: Products) -> Products:
    """`products` with the floor of rows that leaves the least sum of relative errors."""

    def total_error(products: Products) -> float:
        coefficients = fit(steps, lambda rows: features(rows, products))
        return float(relative_errors(steps, lambda rows: predicted_s(coefficients, features(rows, products))).sum())

    counts = (RowCount(products.row_count.multiple, floor) for floor in _FLOORS)
    return min((replace(products, row_count=count) for count in counts), key=total_error)


def predicted_s(coefficients: Mapping[str, float], found: Mapping[str, float]) -> float:
    return sum(coefficient * found[name] for name, coefficient in coefficients.items())


def non_negative_least_squares(
    matrix: npt.NDArray[np.float64], target: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """x >= 0 with the least |matrix · x - target|², by active sets (Lawson and Hanson, 1974)."""
    lengths = np.sqrt((matrix**2).sum(axis=0))
    lengths[lengths == 0] = 1
    scaled = matrix / lengths                      # columns of length 1: one tolerance for all
    x, free = np.zeros(matrix.shape[1]), np.zeros(matrix.shape[1], bool)
    for _ in range(3 * matrix.shape[1]):
        gain = scaled.T @ (target - scaled @ x)
        if free.all() or gain[~free].max() <= 1e-10:
            break
        free[np.argmax(np.where(free, -np.inf, gain))] = True
        while True:
            wanted = np.zeros_like(x)
            wanted[free] = np.linalg.lstsq(scaled[:, free], target, rcond=None)[0]
            below = free & (wanted <= 0)
            if not below.any():
                break
            x += (x[below] / (x[below] - wanted[below])).min() * (wanted - x)    # as far as the first that reaches 0
            free &= x > 1e-12
            x[~free] = 0
        x = wanted
    return x / lengths


def relative_errors(steps: Sequence[TimedStep], step_s: Callable[[StepRows], float]) -> npt.NDArray[np.float64]:
    """Of each step: |predicted - measured| / measured."""
    measured_s = np.array([step.duration_s for step in steps])
    predicted_s = np.array([step_s(step.rows) for step in steps])
    return np.abs(predicted_s - measured_s) / measured_s

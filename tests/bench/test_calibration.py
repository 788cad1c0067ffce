from dataclasses import replace

import numpy as np
import pytest

from bench.calibration import TimedStep, fit, non_negative_least_squares, predicted_s, relative_errors, with_best_floor
from engine.simulation.composition import StepRows
from engine.simulation.measured import Products, RowCount, features

# A processor that computes three rows as fast as one, and whose attention costs little.
TRUE = {"step": 0.01, "product": 5e-6, "key": 1e-6, "query_key": 2e-7, "entry": 1e-4}
PRODUCTS = Products(dense_weights=1000, head_weights=300, row_count=RowCount(1, 3))


def steps() -> list[TimedStep]:
    """Decodes of every batch size, and chunks of prompts beside some of them."""
    rng = np.random.default_rng(0)
    found = []
    for count in range(1, 33):
        starts = rng.integers(10, 2000, count).tolist()
        chunks = [(int(rng.integers(2, 500)), int(rng.integers(0, 1000))) for _ in range(count % 4)]
        num_rows = count + sum(rows for rows, _ in chunks)
        num_sampled = 0 if count % 4 == 3 else count
        rows = StepRows(count + len(chunks), num_rows, num_sampled, starts, chunks)
        found.append(TimedStep(rows, predicted_s(TRUE, features(rows, PRODUCTS))))
    return found


def test_a_fit_finds_the_processor_that_made_the_times():
    timed = steps()
    assert with_best_floor(timed, replace(PRODUCTS, row_count=RowCount())) == PRODUCTS
    found = fit(timed, lambda rows: features(rows, PRODUCTS))
    assert found == pytest.approx(TRUE, rel=1e-3)
    assert relative_errors(timed, lambda rows: predicted_s(found, features(rows, PRODUCTS))).max() < 1e-6


def test_a_few_steps_that_took_far_too_long_do_not_move_a_fit():
    timed = [TimedStep(step.rows, step.duration_s * (8 if i % 8 == 3 else 1)) for i, step in enumerate(steps())]
    found = fit(timed, lambda rows: features(rows, PRODUCTS))
    clean = relative_errors(steps(), lambda rows: predicted_s(found, features(rows, PRODUCTS)))
    assert np.median(clean) < 0.01 and clean.max() < 0.05


def test_features_that_cost_nothing_are_left_out():
    timed = [TimedStep(step.rows, 0.5 * PRODUCTS.num_products(step.rows)) for step in steps()]
    assert fit(timed, lambda rows: features(rows, PRODUCTS)) == pytest.approx({"product": 0.5})


def test_least_squares_hold_what_would_be_negative_at_zero():
    matrix = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    assert non_negative_least_squares(matrix, np.array([3.0, 2.0, 1.0])) == pytest.approx([2.0, 0.0])
    assert non_negative_least_squares(matrix, np.array([2.0, 3.0, 4.0])) == pytest.approx([1.0, 1.0])
    assert non_negative_least_squares(matrix, -np.ones(3)) == pytest.approx([0.0, 0.0])


def test_least_squares_agree_with_a_search_of_all_subsets():
    rng = np.random.default_rng(1)
    for _ in range(20):
        matrix, target = rng.normal(size=(12, 4)), rng.normal(size=12)
        errors = []
        for subset in range(16):
            columns = [j for j in range(4) if subset >> j & 1]
            x = np.linalg.lstsq(matrix[:, columns], target, rcond=None)[0] if columns else np.zeros(0)
            if (x >= 0).all():
                errors.append(((matrix[:, columns] @ x - target) ** 2).sum())
        found = non_negative_least_squares(matrix, target)
        assert (found >= 0).all() and ((matrix @ found - target) ** 2).sum() == pytest.approx(min(errors))

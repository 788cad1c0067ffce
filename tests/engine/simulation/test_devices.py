import json
from dataclasses import replace

import pytest

from engine.errors import ConfigError
from engine.simulation.composition import StepRows
from engine.simulation.devices import DeviceModel, device_names, parse_device
from engine.simulation.measured import MeasuredDevice, Products, RowCount, features, read_measured
from tests.engine.simulation.models import UNIT

MEASURED = MeasuredDevice(
    name="test", model="m", dtype="float16", memory_bytes=10**9, products=Products(100, 10, RowCount(4, 2)),
    coefficients={"step": 0.5, "product": 2.0, "query_key": 0.25}, source={"seed": 0},
)  # fmt: skip


def test_every_device_is_found_with_and_without_prefix():
    assert device_names() == ("a100-40gb", "a100-80gb", "h100", "h200", "l4", "mi300x")
    for name in device_names():
        assert parse_device(name) is parse_device(f"sim:{name}") is parse_device(name.upper())


def test_a_typo_is_told_the_nearest_name():
    with pytest.raises(ConfigError, match=r"no simulated device 'a100-40': did you mean 'a100-40gb'\?"):
        parse_device("sim:a100-40")


def test_a_device_reaches_no_more_than_its_peaks():
    with pytest.raises(ValueError, match=r"flop_efficiency is 1\.2"):
        replace(UNIT, flop_efficiency=1.2)
    assert isinstance(parse_device("h200"), DeviceModel)


def test_a_measured_device_survives_its_file(tmp_path):
    path = tmp_path / "here.json"
    path.write_text(json.dumps(MEASURED.to_json()))
    assert parse_device(f"measured:{path}") == parse_device(f"sim:measured:{path}") == MEASURED


def test_a_measured_step_is_a_weighted_sum():
    rows = StepRows(2, 5, 1, [3], [(4, 0)])
    products = 100 * 8 + 10 * 4                        # 5 rows and 1 row, each padded to a multiple of 4
    assert features(rows, MEASURED.products)["product"] == products
    assert MEASURED.step_s(rows) == 0.5 + 2.0 * products + 0.25 * (4 + (1 + 2 + 3 + 4))


def test_rows_computed_are_padded_and_not_fewer_than_the_floor():
    assert [RowCount(3, 5)(rows) for rows in (0, 1, 3, 4, 6, 7)] == [0, 5, 5, 6, 6, 9]
    assert [RowCount()(rows) for rows in (0, 1, 2)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ("{", "cannot be read"),
        ("[]", "is not the JSON of a calibration"),
        (json.dumps({**MEASURED.to_json(), "schema": "other/1"}), "is not the JSON of a calibration"),
        (json.dumps({**MEASURED.to_json(), "colour": "red"}), "unexpected keyword argument 'colour'"),
        (json.dumps({**MEASURED.to_json(), "products": {}}), "is not a calibration: 'row_count'"),
        (json.dumps({**MEASURED.to_json(), "coefficients": {"moon": 1}}), "unknown features: moon"),
    ],
)
def test_other_files_are_refused(tmp_path, values, complaint):
    path = tmp_path / "file.json"
    path.write_text(values)
    with pytest.raises(ConfigError, match=complaint):
        read_measured(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_measured(tmp_path / "missing.json")

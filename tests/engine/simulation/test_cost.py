"""Costs by hand. On the device UNIT a byte takes a second and arithmetic next to nothing."""

from dataclasses import replace

import pytest

from engine.model.families import family_of
from engine.model.random_weights import shape_config
from engine.model.spec import LayerSpec
from engine.scheduling.plan import StepPlan
from engine.simulation.composition import StepRows, step_rows
from engine.simulation.cost import Roofline
from engine.simulation.devices import parse_device
from tests.engine.simulation.models import TINY, UNIT, perfect


def roofline(spec=TINY, device=UNIT):
    return Roofline(spec, device, weights="float16", kv_cache="float16")


def real_spec(shape):
    config = shape_config(f"random:{shape}")
    return family_of(config.architectures, shape).spec(config)


def test_a_decode_reads_every_weight_once_and_its_context():
    cost = roofline()
    assert cost.dense_weights == 384 and cost.head_weights == 80
    written = 2 * 8 * 2                                # one key and one value of 8 float16
    assert cost.dense_s(1) == 384 * 2 + written
    assert cost.dense_s(3) == 384 * 2 + 3 * written
    assert cost.head_s(0) == 0
    assert cost.head_s(1) == 80 * 2 + 3 * 4 * 10       # logits of 10 float32, passed three times
    one = StepRows(1, 1, 1, [4])
    assert cost.attention_s(one) == 5 * written        # keys 0 to 4
    assert cost.step_s(one) == 384 * 2 + written + 80 * 2 + 120 + 5 * written


def test_arithmetic_decides_where_it_takes_longer():
    slow = replace(UNIT, flop_per_s={"float16": 1.0}, bytes_per_s=1e9)
    cost = roofline(device=slow)
    assert cost.dense_s(5) == pytest.approx(2 * 384 * 5, rel=1e-6)
    assert cost.head_s(2) == pytest.approx(2 * 80 * 2, rel=1e-6)
    pairs = 5 + 6 + 7                                  # rows at positions 4 to 6; scores and values: 2 * 2 * 8 a pair
    assert cost.attention_s(StepRows(1, 3, 0, (), [(3, 4)])) == pytest.approx(4 * 8 * pairs)


def test_efficiencies_and_overheads():
    device = replace(
        UNIT, bytes_efficiency=0.5, attention_bytes_efficiency=0.25, kernel_s=3.0, step_s=100.0,
    )  # fmt: skip
    rows = StepRows(1, 1, 0, [4])
    fixed = 100 + 3 * (9 * 1 + 6)
    assert roofline(device=device).step_s(rows) == fixed + (384 * 2 + 32) * 2 + 5 * 32 * 4


def test_a_window_bounds_what_is_read():
    spec = replace(TINY, layers=(LayerSpec(rope=None), LayerSpec(window=3, rope=None)))
    cost = roofline(spec)
    assert cost.attention_s(StepRows(1, 1, 0, [9])) == 32 * (10 + 3)
    assert cost.attention_s(StepRows(1, 2, 0, (), [(2, 9)])) == 32 * (11 + 4)    # keys 7 to 10 for rows 9 and 10


def test_padding_is_charged_like_tokens():
    cost, tables = roofline(), {"a": (0,), "b": (1,)}

    def seconds(scheduled, start, padding):
        return cost.step_s(step_rows(StepPlan(scheduled, start, tables, sampling=("a",), padding=padding), 16))

    packed = seconds({"a": 5, "b": 3}, {"a": 0, "b": 0}, {})
    padded = seconds({"a": 5, "b": 3}, {"a": 0, "b": 0}, {"b": 2})
    assert padded - packed == 2 * 32 + 5 * 32          # keys and values of two rows written, and of five read
    alone = seconds({"a": 1}, {"a": 8}, {})
    seated = seconds({"a": 1}, {"a": 8, "b": 3}, {"b": 1})
    assert seated == seconds({"a": 1, "b": 1}, {"a": 8, "b": 3}, {})
    assert seated - alone == 32 + 4 * 32


def test_weights_of_opt_13b_on_an_a100():
    """40 layers of 12 · 5120² and a head of 50272 x 5120, float16: 25.7 GB, 16.5 ms at 1.555 TB/s."""
    cost = roofline(real_spec("opt-13b"), perfect(parse_device("a100-40gb")))
    assert cost.dense_weights == 40 * 12 * 5120**2 == 12_582_912_000
    assert cost.head_weights == 50272 * 5120
    kv = 2 * 40 * 5120 * 2                             # 0.8 MB a token
    step = StepRows(1, 1, 1, [511])
    num_bytes = 2 * (12_582_912_000 + 50272 * 5120) + kv + 12 * 50272 + 512 * kv
    assert cost.step_s(step) == pytest.approx(num_bytes / 1.555e12)
    assert cost.dense_s(1) + cost.head_s(1) == pytest.approx(16.5e-3, rel=0.01)


def test_prompt_of_opt_13b_on_an_a100_is_bound_by_arithmetic():
    """512 rows: 2 · 12.6e9 · 512 FLOP at 312 TFLOP/s are 41 ms, 52 ms at the efficiency assumed."""
    spec, device = real_spec("opt-13b"), parse_device("a100-40gb")
    assert roofline(spec, perfect(device)).dense_s(512) == pytest.approx(41.3e-3, rel=0.01)
    assert roofline(spec, device).dense_s(512) == pytest.approx(52e-3, rel=0.01)


def test_weights_of_llama_8b_on_an_h100():
    """Grouped heads: 32 layers of 4096 · (4096 + 2 · 1024 + 4096 + 3 · 14336) and a head of 128256 x 4096."""
    spec = real_spec("llama-8b")
    cost = Roofline(spec, perfect(parse_device("h100")), weights="bfloat16", kv_cache="bfloat16")
    assert cost.dense_weights == 32 * 4096 * (4096 + 2048 + 4096 + 3 * 14336) == 6_979_321_856
    assert cost.attention_s(StepRows(1, 1, 1, [2047])) == pytest.approx(2048 * 32 * 2 * 1024 * 2 / 3.35e12)


def test_a_larger_step_never_costs_less():
    cost = roofline(real_spec("llama-8b"), parse_device("h200"))
    decodes = [cost.step_s(StepRows(n, n, n, [100] * n)) for n in (1, 8, 64, 256)]
    prompts = [cost.step_s(StepRows(2, 1 + n, 2, [100], [(n, 0)])) for n in (2, 256, 512, 8192)]
    assert decodes == sorted(set(decodes)) and prompts == sorted(set(prompts))

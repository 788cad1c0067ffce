"""A profile of steps: kernels are told apart, and what they take is part of the step."""

from collections import Counter

import pytest

from bench.step_profile import Profile, Situation, call_each_kernel, name_of, profile, timed_kernels
from engine.build import build_core
from engine.config import EngineConfig
from kernels.cpu import threads


def test_products_are_told_apart_by_their_outputs():
    assert name_of("_launch_multiply_panels", ("x", (96, 7))) == "product, 96 outputs"
    assert name_of("_launch_attend", ("x",)) == "attend"


def test_kernels_are_timed_only_while_asked_for():
    run = threads.run
    with timed_kernels(Counter()):
        assert threads.run is not run
    assert threads.run is run


@pytest.mark.parametrize("situation", [Situation("prompts", 2, 40, 0, 1), Situation("decode", 2, 8, 2, 2)])
def test_a_profile_names_every_kernel_of_a_step(situation):
    settings = {"model": "random:tiny", "device": "cpu", "dtype": "int8", "kv_cache": {"capacity_tokens": 1024}}
    core = build_core(EngineConfig.model_validate({**settings, "num_threads": 1}))
    call_each_kernel(core)
    found = profile(core, situation, "int8", 0)
    core.close()
    assert {"attend", "turn_and_write", "rms_rows", "quantise_tiles"} <= set(found.kernels_ms)
    assert sum(name.startswith("product") for name in found.kernels_ms) >= 4
    assert 0 < sum(found.kernels_ms.values()) <= found.step_ms


def test_what_no_kernel_took_is_shown():
    text = str(Profile("decode", "int8", 10.0, {"attend": 4.0}))
    assert "40.0 %" in text and "all else" in text and "60.0 %" in text

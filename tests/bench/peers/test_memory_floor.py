import pytest

from bench import timing
from bench.peers import memory_floor
from bench.peers.findings import Comparison
from bench.peers.goals import MEMORY_FLOOR
from bench.peers.memory_floor import floor_shares, memory_bytes_per_s_before, step_weight_bytes
from engine.api import EngineConfig
from tests.bench.peers.fakes import burst, comparison, measurement, single

MEMORY = {"workload": single(), "memory_bytes_per_s": 2e9}


def test_each_single_stream_is_held_against_what_memory_did_before_it():
    runs = [                                                  # TPOT: 9.9 s / 99
        measurement("a", 10.0, **MEMORY),
        measurement("a", 10.0, repeat=1, **MEMORY | {"memory_bytes_per_s": 4e9}),
        measurement("a", 10.0),
        measurement("b", 1.0, **MEMORY),
        measurement("a", 10.0, error="cut off", **MEMORY),
    ]
    assert floor_shares(runs, "a", 160e6) == pytest.approx((0.8, 0.4))


def test_memory_is_measured_before_single_streams_alone_once_the_machine_is_idle(monkeypatch):
    busy = [90.0, 30.0, 5.0]
    monkeypatch.setattr(memory_floor.psutil, "cpu_percent", lambda interval: busy.pop(0))
    monkeypatch.setattr(timing, "read_bytes_per_s", lambda *, num_threads: 1e9 * num_threads)
    assert memory_bytes_per_s_before(single(), 2) == 2e9 and busy == []
    assert memory_bytes_per_s_before(burst(8), 2) is None


def test_a_step_reads_the_scales_of_its_weights_too():
    narrow, wide = (step_weight_bytes(EngineConfig(model="random:qwen2.5-0.5b", dtype=d)) for d in ("int8", "bfloat16"))
    assert 1.02 < narrow / (wide / 2) < 1.05


def test_the_median_of_the_repeats_is_the_goals_value():
    runs = [
        measurement("ours_engine_int8", 10.0, repeat=i, **MEMORY | {"memory_bytes_per_s": 1e9 * speed})
        for i, speed in enumerate((2, 4, 5))
    ]
    found: Comparison = comparison(
        runs, ["ours_engine_int8"], labels=("single",), descriptions={"ours_engine_int8": {"step_weight_bytes": 360e6}}
    )
    pair = ("ours_engine_int8", MEMORY_FLOOR, "single")
    assert found.ratios[pair] == pytest.approx((1.8, 0.9, 0.72))
    assert found.goals[pair].value == pytest.approx(0.9) and found.goals[pair].is_reached

import pytest

from bench.peers.goals import MEMORY_FLOOR, bounds_at, cut, goals_at, paired
from bench.peers.lineup import SYSTEMS
from tests.bench.peers.fakes import burst, measurement

BURSTS = ["burst 128", "burst 384"]


def test_every_goal_names_systems_that_are_there():
    for system, against, _ in bounds_at(BURSTS):
        assert system in SYSTEMS
        assert against in SYSTEMS or against == MEMORY_FLOOR


@pytest.mark.parametrize(
    ("system", "against", "workload", "wanted"),
    [
        ("ours_http_float16", "transformers_static", "burst 128", 6.0),
        ("ours_http_int8", "transformers_static", "burst 384", 10.0),
        ("ours_engine_bfloat16", "transformers_static", "burst 384", 6.0),
        ("ours_http_float16", "transformers_continuous", "burst 384", 4.0),
        ("ours_http_float16", "vllm_cpu_float32", "burst 128", 1.5),
        ("ours_http_int8", "vllm_cpu_float32", "burst 384", 2.5),
        ("ours_http_int8", "llama_cpp_q8_0_16", "burst 128", 2.5),
        ("ours_http_float16", "llama_cpp_q4_k_m_48", "burst 384", 1.5),
        ("ours_http_int8", "llama_cpp_q8_0_16", "single", 1.0),
        ("ours_http_int8", MEMORY_FLOOR, "single", 0.85),
        ("ours_http_float16", "ours_engine_float16", "burst 128", 0.95),
    ],
)
def test_the_goals(system, against, workload, wanted):
    assert bounds_at(BURSTS)[system, against, workload] == wanted


@pytest.mark.parametrize(
    ("of_repeats", "verdict"),
    [((1.4, 1.5, 9.0), "reached"), ((1.49, 1.499, 9.0), "NOT reached"), ((), "not measured")],
)
def test_the_median_decides_and_what_was_not_measured_is_neither(of_repeats, verdict):
    pair = ("ours_http_float16", "vllm_cpu_float32", "burst 128")
    assert goals_at(BURSTS, {pair: of_repeats})[pair].verdict == verdict


def test_a_ratio_pairs_runs_of_the_same_workload_and_repeat():
    runs = [
        measurement("a", 40.0, workload=burst(8)),
        measurement("b", 10.0, workload=burst(8)),
        measurement("a", 30.0, workload=burst(8), repeat=1),
        measurement("b", 20.0, workload=burst(8), repeat=1),
        measurement("a", 50.0, workload=burst(8), repeat=2),
        measurement("a", 9.0, workload=burst(16)),
        measurement("b", 3.0, workload=burst(16)),
    ]
    found = paired(runs)
    assert found["a", "b", "burst 8"] == pytest.approx((4.0, 1.5))
    assert found["b", "a", "burst 8"] == pytest.approx((0.25, 2 / 3))
    assert found["a", "b", "burst 16"] == pytest.approx((3.0,))


@pytest.mark.parametrize("failing", ["a", "b"])
def test_a_run_with_a_failed_request_gives_no_ratio(failing):
    runs = [measurement(name, 10.0, error="cut off" if name == failing else None) for name in ("a", "b")]
    assert paired(runs) == {}


@pytest.mark.parametrize(("ratio", "text"), [(5.999, "5.99"), (6.0, "6.00"), (0.1 + 0.2, "0.30"), (0.949999, "0.94")])
def test_a_ratio_is_never_rounded_up(ratio, text):
    assert cut(ratio) == text

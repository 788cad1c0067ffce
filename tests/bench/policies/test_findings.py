import pytest

from bench.policies.findings import DeviceFacts, baseline_factor, explanations, order_text, ratio, splits
from bench.policies.findings import at_cap as at
from tests.bench.policies.fakes import run

FACTS = DeviceFacts(weight_bytes=20_000_000_000, bytes_per_s=1e12, kv_capacity_tokens=10_000, max_model_len=2_000)
RUNS = [
    run("static", 405.0, num_steps=1000, running=2.0),
    run("packed_static", 425.0, num_steps=1000, running=2.0),
    run("orca", 2000.0, running=16.0),
    run("orca", 1000.0, variant="max_model_len", running=5.0),
    run("tgi", 1620.0, parameters={"max_batch_total_tokens": 5_000}, running=8.0),
    run("vllm_v0", 2430.0, running=20.0, batch=15.0),
    run("chunked", 2430.0, running=19.0),
]


def test_a_reported_ratio_is_policy_times_implementation():
    found = {split.policy: split for split in splits(RUNS)}
    assert baseline_factor(RUNS) == pytest.approx(405 / 81)
    vllm = found["vllm_v0"]
    assert vllm.like_for_like == pytest.approx(6.0)
    assert vllm.with_factor == pytest.approx(30.0)
    assert vllm.implementation == pytest.approx(23 / 6)
    assert vllm.reached == pytest.approx(23 / 30)
    assert "ray_serve_2023" not in found                     # it was not run
    assert splits(RUNS[1:]) == []


@pytest.mark.parametrize(
    ("changed", "holds"),
    [({}, True), ({"chunked": 2429.0}, False), ({"tgi": 420.0}, False), ({"orca": 2500.0}, False)],
)
def test_the_expected_order_is_checked(changed, holds):
    speeds = {r.case.policy: r.summary.total_tokens_per_s for r in RUNS if not r.case.variant} | changed
    runs = [run(policy, speed) for policy, speed in speeds.items()]
    text = order_text(runs, 1536)
    assert text.startswith(f"At cap 1536 the order {'holds' if holds else 'does NOT hold'}: static 405 < packed_static")
    assert ("orca is ahead of vllm_v0" in text) is ("orca" in changed)


def test_explanations_state_the_figures_they_follow_from():
    text = "\n".join(explanations(RUNS, FACTS))
    assert "20.0 ms read 20.0 GB of weights at 1.00 TB/s" in text
    assert "405 tokens/s come out where 81 were reported: the eager baseline was 5.0 times slower" in text
    assert "its quota of 5,000 tokens is 50% of the pool's 10,000" in text
    assert "vLLM: reported 23× = 6.00× by the policy (vllm_v0, equal kernels) × 3.8× by the implementation" in text
    assert "Its 1,863 tokens/s were 77% of what the policy reaches on this roofline, the baseline's 81 were 20%" in text
    assert "1.50× at cap 1536 (2.50× the requests) of tgi" in text
    assert "the pool of 10,000 holds 5 at once" in text


def test_without_the_runs_or_the_facts_nothing_is_explained():
    assert explanations(RUNS[:4], FACTS) == []
    assert explanations(RUNS, None) == []


def test_a_ratio_counts_prompt_tokens_too():
    runs = at([run("static", 100.0), run("orca", 250.0)], 1536)
    assert ratio(runs, "orca") == pytest.approx(2.5)

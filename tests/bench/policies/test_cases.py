import pytest

from bench.policies.cases import HARNESSES, REPEATED, burst, cases, reservation
from bench.policies.runs import Case
from engine.config import SchedulerConfig
from engine.scheduling.policies import policy_names


@pytest.mark.parametrize("setting", HARNESSES)
def test_every_policy_is_swept_with_parameters_that_it_takes(setting):
    for cap in HARNESSES[setting].caps:
        found = cases(setting, cap)
        assert list(dict.fromkeys(case.policy for case in found)) == list(policy_names())
        assert len({case.label for case in found}) == len(found)
        for case in found:
            SchedulerConfig.model_validate({"policy": case.policy, **case.parameters})


def test_the_seed_setting_is_the_original_harness():
    by_label = {case.label: case.parameters for case in cases("seed", 512)}
    assert by_label["static"] == {"batch_size": 8}
    assert by_label["tgi"] == {"max_batch_total_tokens": 8100}
    assert by_label["ray_serve_2023"] == {"max_waiting_tokens": 7, "max_batch_total_tokens": 8100}
    assert by_label["orca (max_model_len)"] == {"reserve": "max_model_len"}
    assert by_label["chunked"] == {}


@pytest.mark.parametrize("setting", HARNESSES)
def test_a_static_batch_fills_about_what_a_quota_counts(setting):
    harness = HARNESSES[setting]
    for cap in harness.caps:
        held = harness.batch_size[cap] * (burst(setting, cap).prompt_len + cap)
        assert held <= 1.03 * harness.budget_tokens[cap]


def test_a_chosen_few_alone():
    assert [case.label for case in cases("cpu", 32, ["orca", "static"], both_reserves=False)] == ["orca", "static"]
    assert set(REPEATED) <= set(policy_names())


@pytest.mark.parametrize(
    ("policy", "parameters", "kind"),
    [
        ("orca", {}, "its maximum"),
        ("orca", {"reserve": "max_model_len"}, "the context"),
        ("chunked", {}, "what it needs"),
        ("trtllm_no_evict", {"reserve": "max_model_len"}, "what it needs"),
    ],
)
def test_what_a_request_holds_before_it_needs_it(policy, parameters, kind):
    assert reservation(Case(policy, parameters)) == kind

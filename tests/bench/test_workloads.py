import dataclasses
import math
import statistics
from itertools import pairwise

import pytest

from bench.workloads import SETTINGS, Burst, Chat, LongShort, Poisson, Single, Trace, Workload, build_workload

VOCABULARY = range(100, 1100)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", SETTINGS["cpu"])
def test_the_same_seed_gives_the_same_workload_and_another_seed_another(setting, name):
    spec = SETTINGS[setting][name]
    workload = build_workload(spec, VOCABULARY, seed=7)
    assert workload == build_workload(spec, VOCABULARY, seed=7)
    assert workload.fingerprint != build_workload(spec, VOCABULARY, seed=8).fingerprint
    assert [request.index for request in workload.requests] == list(range(len(workload.requests)))


def test_prompts_hold_ids_of_the_vocabulary_only_and_reach_all_of_it():
    workload = build_workload(Burst(50, 64, 32, 32), [3, 5, 8], seed=0)
    assert {token_id for request in workload.requests for token_id in request.prompt_token_ids} == {3, 5, 8}


def test_a_workload_survives_json():
    workload = build_workload(SETTINGS["cpu"]["chat"], VOCABULARY, seed=1)
    assert Workload.from_json(workload.to_json()) == workload


def test_another_cap_or_rate_leaves_the_prompts_as_they_were():
    short, long = (build_workload(Burst(20, 16, 128, cap), VOCABULARY, 0) for cap in (32, 1536))
    assert [r.prompt_token_ids for r in short.requests] == [r.prompt_token_ids for r in long.requests]
    assert short.num_output_tokens < long.num_output_tokens


@pytest.mark.parametrize(("cap", "mean"), [(32, 15), (128, 54), (512, 118), (1536, 128)])
def test_output_lengths_are_exponential_rejected_beyond_the_cap(cap, mean):
    num_requests = 10_000
    workload = build_workload(Burst(num_requests, 1, 128, cap), VOCABULARY, seed=0)
    lengths = [request.output_len for request in workload.requests]
    truncated_mean = 128 - cap / math.expm1(cap / 128)
    assert round(truncated_mean) == mean
    standard_error = statistics.stdev(lengths) / math.sqrt(num_requests)
    assert statistics.fmean(lengths) == pytest.approx(truncated_mean, abs=0.05 + 4 * standard_error)
    assert 1 <= min(lengths) <= max(lengths) <= cap
    # rejection leaves no heap of requests at the cap, as cutting the draws off would
    assert lengths.count(cap) < num_requests / cap * 1.5


def test_burst_arrives_at_once():
    assert {request.arrival_s for request in build_workload(SETTINGS["cpu"]["burst"], VOCABULARY, 0).requests} == {0.0}


def test_poisson_arrivals_have_their_rate_and_their_spread():
    workload = build_workload(Poisson(5000, 512, 128, 1536, rate=4.0), VOCABULARY, seed=0)
    arrivals = [request.arrival_s for request in workload.requests]
    gaps = [later - earlier for earlier, later in pairwise(arrivals)]
    assert statistics.fmean(gaps) == pytest.approx(1 / 4, rel=0.06)
    assert statistics.stdev(gaps) == pytest.approx(1 / 4, rel=0.1)    # an exponential's equals its mean
    lengths = [len(request.prompt_token_ids) for request in workload.requests]
    assert (min(lengths), max(lengths)) == (1, 512)
    assert statistics.fmean(lengths) == pytest.approx(256.5, rel=0.05)


def test_chat_turns_grow_from_one_shared_system_prompt():
    workload = build_workload(Chat(3, 4, system_len=50, mean_turn_len=20, mean_output_len=30, cap=90), VOCABULARY, 0)
    assert [len(chain) for chain in workload.chains] == [4, 4, 4]
    system = workload.requests[0].prompt_token_ids[:50]
    for chain in workload.chains:
        for earlier, later in pairwise(chain):
            assert later.prompt_token_ids[: len(earlier.prompt_token_ids)] == earlier.prompt_token_ids
            answer_and_turn = len(later.prompt_token_ids) - len(earlier.prompt_token_ids)
            assert answer_and_turn > earlier.output_len
        assert chain[0].prompt_token_ids[:50] == system
    assert len({chain[0].prompt_token_ids for chain in workload.chains}) == 3


def test_lognormal_lengths_have_their_mean():
    spec = Chat(4000, 1, system_len=1, mean_turn_len=64, mean_output_len=128, cap=10**6)
    outputs = [request.output_len for request in build_workload(spec, VOCABULARY, 0).requests]
    assert statistics.fmean(outputs) == pytest.approx(128, rel=0.06)
    assert statistics.median(outputs) == pytest.approx(128 * math.exp(-0.8**2 / 2), rel=0.06)


def test_long_short_has_exactly_its_share_of_long_prompts():
    workload = build_workload(LongShort(200, 64, 4000, 64, rate=4.0), VOCABULARY, 0)
    lengths = [len(request.prompt_token_ids) for request in workload.requests]
    assert (lengths.count(64), lengths.count(4000)) == (190, 10)
    assert {request.output_len for request in workload.requests} == {64}


def test_single_is_one_chain():
    assert [len(chain) for chain in build_workload(Single(3, 8, 8), VOCABULARY, 0).chains] == [3]


def test_requests_of_an_open_loop_wait_for_nobody():
    assert {len(chain) for chain in build_workload(SETTINGS["cpu"]["poisson"], VOCABULARY, 0).chains} == {1}


def test_a_trace_keeps_lengths_and_arrivals_and_shares_recorded_blocks(tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_text(
        '{"timestamp": 1000, "input_length": 1030, "output_length": 5, "hash_ids": [1, 2, 3]}\n'
        '{"timestamp": 3000, "input_length": 700, "output_length": 6, "hash_ids": [1, 4]}\n'
    )
    first, second = build_workload(Trace(str(file), speedup=2.0), VOCABULARY, 0).requests
    assert (len(first.prompt_token_ids), len(second.prompt_token_ids)) == (1030, 700)
    assert first.prompt_token_ids[:512] == second.prompt_token_ids[:512]
    assert first.prompt_token_ids[512:700] != second.prompt_token_ids[512:700]
    assert (first.arrival_s, second.arrival_s) == (0.0, 1.0)
    assert (first.output_len, second.output_len) == (5, 6)


def test_parameters_of_the_workload_are_recorded():
    spec = SETTINGS["seed"]["burst"]
    assert build_workload(spec, VOCABULARY, 0).parameters == dataclasses.asdict(spec)

"""The whole engine against transformers `generate`: float32, greedy, token for token, whatever the schedule."""

from dataclasses import replace

import pytest

from engine.request import GenerationRequest
from engine.sampling.params import SamplingParams
from tests.engine.model.driver import load
from tests.engine.model_core import Schedule, build, serve
from tests.helpers import generation
from tests.helpers_models import FAMILIES, prompt, rand_config, reference_tokens, save_checkpoint

NUM_TOKENS = 64
PROMPTS = {length: prompt(length) for length in (1, 5, 23, 45)}


SCHEDULES = {
    "one-step-prefill": Schedule(512, 16, 64),
    "budget-64-block-32": Schedule(64, 32, 32),
    "budget-7": Schedule(7, 16, 64),
    "budget-1-block-1": Schedule(1, 1, 512),
    "two-at-a-time": Schedule(64, 16, 64, max_num_seqs=2),
    "as-on-gpu": Schedule(64, 16, 64, as_on_gpu=True),
}
PREEMPTING = Schedule(16, 4, 45)                       # 180 slots for 330 tokens


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request, tmp_path_factory):
    """A loaded model and what transformers generates for every prompt."""
    folder = tmp_path_factory.mktemp(request.param)
    reference = save_checkpoint(folder, FAMILIES[request.param])
    expected = {str(length): reference_tokens(reference, ids, NUM_TOKENS) for length, ids in PROMPTS.items()}
    return load(folder), expected


def all_prompts() -> list[GenerationRequest]:
    return [generation(str(length), ids, NUM_TOKENS) for length, ids in PROMPTS.items()]


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=list(SCHEDULES))
def test_every_request_of_a_mixed_batch_equals_transformers(family, schedule):
    model, expected = family
    assert serve(build(model, schedule), *all_prompts()) == expected


@pytest.mark.parametrize("as_on_gpu", [False, True], ids=["in turn", "as on a GPU"])
def test_preemption_does_not_show(family, as_on_gpu):
    model, expected = family
    core = build(model, replace(PREEMPTING, as_on_gpu=as_on_gpu))
    assert serve(core, *all_prompts()) == expected
    assert core.stats().num_preemptions > 0


def test_prefix_hits_do_not_show(family):
    model, expected = family
    core = build(model, SCHEDULES["budget-7"])
    serve(core, *all_prompts())
    assert serve(core, *all_prompts()) == expected
    assert core.stats().prefix_cache_hits > 0


@pytest.fixture(scope="module")
def rand(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rand")
    save_checkpoint(folder, rand_config())
    return load(folder)


SAMPLED = {
    "plain": {},
    "top-k": {"top_k": 5},
    "top-p": {"top_p": 0.8},
    "min-p": {"min_p": 0.05},
    "penalties": {"presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.3},
    "biased": {"logit_bias": {7: 3.0}, "min_tokens": 20},
}


def sampled_requests() -> list[GenerationRequest]:
    return [
        GenerationRequest(
            f"{name}-{choice}",
            tuple(prompt(20, seed=choice)),
            SamplingParams(max_tokens=40, temperature=1.0, seed=seed, **options),
            choice=choice,
        )
        for seed, (name, options) in enumerate(SAMPLED.items())
        for choice in range(2)
    ]


def test_sampled_tokens_do_not_depend_on_schedule_preemption_or_batch_mates(rand):
    alone = {}
    for request in sampled_requests():
        alone |= serve(build(rand, SCHEDULES["one-step-prefill"]), request)
    assert len({tuple(tokens) for tokens in alone.values()}) == len(alone)
    assert serve(build(rand, SCHEDULES["budget-7"]), *sampled_requests()) == alone
    for as_on_gpu in (False, True):
        small = build(rand, replace(PREEMPTING, as_on_gpu=as_on_gpu))
        assert serve(small, *sampled_requests()) == alone
        assert small.stats().num_preemptions > 0


def test_continuation_draws_what_the_original_would_have(rand):
    (request, *_) = sampled_requests()
    whole = serve(build(rand, SCHEDULES["budget-7"]), request)[request.request_id]
    first = build(rand, SCHEDULES["budget-7"])
    first.add_request(request)
    said = [token for _ in range(15) for output in first.step() for token in output.token_ids]
    (continuation,) = first.drain()
    rest = serve(build(rand, SCHEDULES["budget-64-block-32"]), continuation.request)[request.request_id]
    assert said + rest == whole
    assert len(said) > 0


def test_warm_up_leaves_no_trace(rand):
    request = sampled_requests()[0]
    cold = serve(build(rand, SCHEDULES["budget-7"]), request)
    core = build(rand, SCHEDULES["budget-7"])
    core._runner.warm_up()
    assert serve(core, request) == cold

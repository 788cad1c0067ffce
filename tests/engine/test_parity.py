"""The whole engine against transformers `generate`: float32, greedy, token for token, whatever the schedule."""

from dataclasses import dataclass

import pytest
import torch

from engine.core import EngineCore
from engine.kv_cache.manager import KVCacheManager
from engine.kv_cache.tensors import KVCacheTensors
from engine.model.loader import LoadedModel
from engine.request import GenerationRequest
from engine.runner import ModelRunner
from engine.sampling.params import SamplingParams
from engine.scheduling.base import Scheduler
from engine.scheduling.policies import policy_class
from engine.scheduling.policy import CPU_LIMITS
from tests.engine.builders import LetterTokenizer
from tests.engine.model.driver import load
from tests.helpers import ManualClock, generation
from tests.helpers_models import FAMILIES, prompt, rand_config, reference_tokens, save_checkpoint

NUM_TOKENS = 64
PROMPTS = {length: prompt(length) for length in (1, 5, 23, 45)}


@dataclass(frozen=True)
class Schedule:
    budget: int
    block_size: int
    num_blocks: int
    max_num_seqs: int = 8


SCHEDULES = {
    "one-step-prefill": Schedule(512, 16, 64),
    "budget-64-block-32": Schedule(64, 32, 32),
    "budget-7": Schedule(7, 16, 64),
    "budget-1-block-1": Schedule(1, 1, 512),
    "two-at-a-time": Schedule(64, 16, 64, max_num_seqs=2),
}
PREEMPTING = Schedule(16, 4, 45)                       # 180 slots for 330 tokens


def build(model: LoadedModel, schedule: Schedule) -> EngineCore:
    clock, kind = ManualClock(), policy_class("chunked")
    parameters = kind.Parameters.model_validate(
        {"max_num_batched_tokens": schedule.budget, "max_num_seqs": schedule.max_num_seqs}
    )
    kv = KVCacheTensors.allocate(model.spec, schedule.num_blocks, schedule.block_size, torch.float32, "cpu")
    for tensor in (*kv.keys, *kv.values):
        tensor.fill_(float("nan"))                     # nothing but what was written may ever be read
    return EngineCore(
        Scheduler(
            kind(parameters, CPU_LIMITS),
            KVCacheManager(schedule.num_blocks, schedule.block_size),
            max_model_len=512,
            clock=clock,
        ),
        ModelRunner(
            model.decoder,
            kv,
            max_num_seqs=schedule.max_num_seqs,
            max_model_len=512,
            eos_token_ids=frozenset(),
            vocab_size=model.spec.vocab_size,
            device=torch.device("cpu"),
            clock=clock,
        ),
        LetterTokenizer(),  # type: ignore[arg-type]
        model_name="tiny",
        vocab_size=model.spec.vocab_size,
        eos_token_ids=frozenset(),
        max_num_waiting=100,
        clock=clock,
        check_every_step=True,
    )


def serve(core: EngineCore, *requests: GenerationRequest) -> dict[str, list[int]]:
    for request in requests:
        core.add_request(request)
    tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
    while core.has_work:
        for output in core.step():
            tokens[output.request_id] += output.token_ids
    return tokens


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


def test_preemption_does_not_show(family):
    model, expected = family
    core = build(model, PREEMPTING)
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
    small = build(rand, PREEMPTING)
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

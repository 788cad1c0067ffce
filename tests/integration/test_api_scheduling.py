"""What the scheduler and the cache do, seen from outside: nothing but the right answer."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from transformers import PreTrainedModel

from tests.helpers_models import prompt, reference_tokens
from tests.integration.asking import at_once, is_idle, left_open, settle, settles, spelled, tokens_of
from tests.integration.conftest import RAND_POOL_TOKENS, Application
from tests.integration.sse import open_stream, stream

pytestmark = pytest.mark.integration

def settled_ends(application: Application) -> dict[str, float]:
    """How many requests have ended, by reason, once every ingress replica has heard of the last one."""
    settle(application)
    reasons = ("stop", "length", "abort", "error")
    return {reason: application.metric("conveyor_requests_finished_total", f'reason="{reason}"') for reason in reasons}


def test_sc_01_a_prompt_larger_than_the_pool_is_refused_and_blocks_nobody(rand: Application) -> None:
    small = [{"prompt": prompt(10, seed), "max_tokens": 4, "ignore_eos": True} for seed in range(5)]
    begun_s = time.monotonic()
    refused = rand.post("/v1/completions", {"prompt": [5] * 800, "max_tokens": 4})
    assert refused.status_code == 400
    assert time.monotonic() - begun_s < 2
    for answer in at_once(rand, small):
        assert answer["usage"]["completion_tokens"] == 4
    rand.assert_alive()


@pytest.mark.parametrize("num_prompt_tokens", [500, RAND_POOL_TOKENS - 1, RAND_POOL_TOKENS])
def test_sc_01_at_the_edge_of_the_pool_nothing_hangs(rand: Application, num_prompt_tokens: int) -> None:
    body = {"prompt": prompt(num_prompt_tokens), "max_tokens": 100, "ignore_eos": True, "temperature": 0}
    response = rand.post("/v1/completions", body, timeout_s=20)
    assert response.status_code in (200, 400)
    if response.status_code == 200:
        assert response.json()["choices"][0]["finish_reason"] == "length"
    assert settles(lambda: is_idle(rand))
    rand.assert_alive()


def test_sc_01_more_than_fits_at_once_is_answered_as_one_by_one(rand: Application) -> None:
    bodies = [{"prompt": prompt(200, seed), "max_tokens": 100, "ignore_eos": True, "logprobs": 0} for seed in range(8)]
    alone = [tokens_of(rand.complete(body)) for body in bodies]
    assert [tokens_of(answer) for answer in at_once(rand, bodies)] == alone
    assert settles(lambda: is_idle(rand))


def close_a_stream(application: Application, **fields: Any) -> None:
    body = {"prompt": "x L", "max_tokens": 1500, "temperature": 0} | fields
    with open_stream(application, "/v1/completions", body) as payloads:
        for _ in range(3):
            next(payloads)


def close_a_plain_request(application: Application, **fields: Any) -> None:
    # more choices than the pool holds at once: one alone is over before anybody has heard that it runs
    with left_open(application, {"prompt": "x L", "max_tokens": 600, "n": 64, "temperature": 0} | fields):
        assert settles(lambda: application.metric("conveyor_num_requests_running") > 0)


@pytest.mark.parametrize(
    "leave",
    [
        close_a_stream,
        close_a_plain_request,
        lambda application: close_a_stream(application, n=4),
        lambda application: close_a_plain_request(application, prompt=[7] * 1400 + [ord("L")], max_tokens=500),
    ],
    ids=["stream", "plain request", "four choices", "long prompt"],
)
def test_sc_03_a_client_that_leaves_frees_its_blocks(script: Application, leave: Callable[[Application], None]) -> None:
    num_finished_before = settled_ends(script)
    leave(script)
    assert settles(lambda: is_idle(script))
    num_finished = settled_ends(script)
    assert num_finished["abort"] > num_finished_before["abort"]
    others = {"abort": 0, "length": 0}                     # some of many choices may have come to their end before
    assert num_finished | others == num_finished_before | others
    answer = script.complete({"prompt": "x V", "max_tokens": 16, "stop": ["zz"]})
    assert answer["choices"][0]["text"] == " UNO DUE TRE"


def test_sc_03_fifty_clients_that_leave_leak_nothing(script: Application) -> None:
    num_aborts = settled_ends(script)["abort"]
    for _ in range(50):
        close_a_stream(script)
    assert settles(lambda: is_idle(script))
    assert settled_ends(script)["abort"] == num_aborts + 50
    script.assert_alive()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"presence_penalty": 1.0},
        {"repetition_penalty": 1.3},
        {"temperature": 1.0, "seed": 11},
        {"echo": True},
    ],
    ids=str,
)
def test_sc_05_preemption_is_invisible(rand: Application, fields: dict[str, Any]) -> None:
    """Eight times 160 tokens in a pool of 512; alone, each fits."""
    bodies = [
        {"prompt": prompt(40, seed), "max_tokens": 120, "ignore_eos": True, "logprobs": 1} | fields for seed in range(8)
    ]
    alone = [rand.complete(body) for body in bodies]
    num_preemptions = rand.metric("conveyor_num_preemptions_total")
    together = at_once(rand, bodies)
    assert settles(lambda: rand.metric("conveyor_num_preemptions_total") > num_preemptions)
    for one, other in zip(alone, together, strict=True):
        assert tokens_of(one) == tokens_of(other)
        assert one["choices"][0]["text"] == other["choices"][0]["text"]
        assert one["choices"][0]["finish_reason"] == other["choices"][0]["finish_reason"] == "length"
        assert one["usage"]["completion_tokens"] == other["usage"]["completion_tokens"] == 120
        logprobs = (answer["choices"][0]["logprobs"]["token_logprobs"] for answer in (one, other))
        assert [x for x in next(logprobs) if x] == pytest.approx([x for x in next(logprobs) if x], abs=1e-3)


def test_sc_05_preempted_streams_repeat_and_lose_nothing(rand: Application) -> None:
    bodies = [{"prompt": prompt(40, seed), "max_tokens": 120, "ignore_eos": True} for seed in range(8)]
    alone = [rand.complete(body)["choices"][0]["text"] for body in bodies]
    num_preemptions = rand.metric("conveyor_num_preemptions_total")
    with ThreadPoolExecutor(len(bodies)) as pool:
        streams = pool.map(lambda body: stream(rand, "/v1/completions", body | {"temperature": 0}), bodies)
        together = [streamed.text() for streamed in streams]
    assert settles(lambda: rand.metric("conveyor_num_preemptions_total") > num_preemptions)
    assert together == alone


def test_nu_01_greedy_output_does_not_depend_on_the_batch(rand: Application, rand_model: PreTrainedModel) -> None:
    lengths = (3, 5, 8, 13, 21, 30, 44, 57, 64, 71, 85, 99, 120, 150, 177, 200)
    prompts = [prompt(length, seed) for seed, length in enumerate(lengths)]
    bodies = [{"prompt": ids, "max_tokens": 48, "ignore_eos": True, "logprobs": 1} for ids in prompts]
    expected = [spelled(reference_tokens(rand_model, ids, 48)) for ids in prompts]
    assert [tokens_of(rand.complete(body)) for body in bodies] == expected
    assert [tokens_of(answer) for answer in at_once(rand, bodies)] == expected
    shuffled = [(i * 5) % 16 for i in range(16)]
    answers = at_once(rand, [bodies[i] for i in shuffled])
    assert [tokens_of(answer) for answer in answers] == [expected[i] for i in shuffled]


def test_nu_01_copies_of_one_prompt_are_identical(rand: Application) -> None:
    answers = at_once(rand, [{"prompt": prompt(60), "max_tokens": 48, "ignore_eos": True, "logprobs": 1}] * 16)
    assert all(answer["choices"][0]["logprobs"] == answers[0]["choices"][0]["logprobs"] for answer in answers)

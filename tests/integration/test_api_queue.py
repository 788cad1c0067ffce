"""Who waits for whom, seen from outside: cancelled before its turn, urgent, or a prompt that the cache has already."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from typing import Any

import pytest
from transformers import PreTrainedModel

from tests.helpers_models import prompt, reference_logits, reference_tokens
from tests.integration.asking import (
    COMPLETIONS,
    at_once,
    is_idle,
    left_open,
    settled,
    settles,
    spelled,
    tokens_of,
)  # fmt: skip
from tests.integration.conftest import RAND_POOL_TOKENS, Application
from tests.integration.sse import Streamed, gathered, open_stream, stream

pytestmark = pytest.mark.integration

GENERATED, PREEMPTED = "conveyor_generated_tokens_total", "conveyor_num_preemptions_total"


def body_for(token_ids: list[int], max_tokens: int, **fields: Any) -> dict[str, Any]:
    body = {"prompt": token_ids, "max_tokens": max_tokens, "ignore_eos": True, "logprobs": 0, "temperature": 0}
    return body | fields


def tokens_by_choice(streamed: Streamed) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for choice in streamed.choices:
        found.setdefault(choice["index"], []).extend((choice["logprobs"] or {}).get("tokens", []))
    return found


def tokens_of_stream(streamed: Streamed) -> list[str]:
    return [token for choice in streamed.choices for token in (choice["logprobs"] or {}).get("tokens", [])]


@pytest.mark.parametrize("leaves", ["while A runs", pytest.param("as A ends", marks=pytest.mark.exhaustive)])
def test_sc_04_a_request_cancelled_in_the_queue_harms_nobody(
    rand: Application, rand_model: PreTrainedModel, leaves: str
) -> None:
    """A's choices leave no room for the long prompts of B and C. When the first has ended, B has long been waiting."""
    first, second, third = prompt(60, 21), prompt(460, 22), prompt(460, 23)
    num_choices, num_tokens = 4, RAND_POOL_TOKENS - 60
    num_generated = settled(rand, GENERATED)
    body = body_for(first, num_tokens, n=num_choices)
    with ThreadPoolExecutor(1) as pool, open_stream(rand, COMPLETIONS, body) as payloads:
        events = [next(payloads)]
        with left_open(rand, body_for(second, 1500)):
            c = pool.submit(rand.complete, body_for(third, 4))
            if leaves == "as A ends":
                events += payloads
            while leaves == "while A runs" and '"length"' not in events[-1]:
                events.append(next(payloads))
        left_s = time.monotonic()
        streamed = gathered([*events, *payloads])
        answer = c.result()
    assert time.monotonic() - max(left_s, streamed.times_s[-1]) < 2
    assert all(streamed.finish_reasons(index) == ["length"] for index in range(num_choices))
    expected = spelled(reference_tokens(rand_model, first, num_tokens))
    assert tokens_by_choice(streamed) == dict.fromkeys(range(num_choices), expected)
    assert tokens_of(answer) == spelled(reference_tokens(rand_model, third, 4))
    num_more = settled(rand, GENERATED) - num_generated - num_choices * num_tokens - 4
    if leaves == "while A runs":                           # else B may have begun before it was gone
        assert num_more == 0
    rand.assert_alive()


MORE_LENGTHS = [pytest.param(length, marks=pytest.mark.exhaustive) for length in (15, 31, 32, 33, 256)]
KINDS = {"mixed": lambda k: prompt(k, 31), "equal": lambda k: [1] * k}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_tokens", [16, 17, 64, *MORE_LENGTHS])
def test_sc_07_a_prompt_found_in_the_cache_is_answered_as_the_first_time(
    rand: Application, rand_model: PreTrainedModel, num_tokens: int, kind: str
) -> None:
    ids = KINDS[kind](num_tokens)
    expected = spelled(reference_tokens(rand_model, ids, 8))
    for is_repeated in (False, True, True):
        answer = rand.complete(body_for(ids, 8))
        assert tokens_of(answer) == expected
        assert_cached(answer, num_tokens, at_least=(num_tokens - 1) // 16 * 16 if is_repeated else 0)
    for _ in range(2):
        assert_prompt_scored(rand.complete(body_for(ids, 1, echo=True, logprobs=5)), ids, rand_model)
    assert tokens_of(rand.complete(body_for([*ids, 9], 8))) == spelled(reference_tokens(rand_model, [*ids, 9], 8))
    three = rand.complete(body_for(ids, 8, n=3))
    assert [choice["logprobs"]["tokens"] for choice in three["choices"]] == [expected] * 3
    assert_cached(three, num_tokens)
    streamed = stream(rand, COMPLETIONS, body_for([], 8, n=2) | {"prompt": [ids, ids]})
    assert [streamed.text(index) for index in range(4)] == [answer["choices"][0]["text"]] * 4


def assert_cached(answer: dict[str, Any], num_prompt_tokens: int, at_least: int = 0) -> None:
    num_cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert at_least <= num_cached <= num_prompt_tokens - 1


def assert_prompt_scored(answer: dict[str, Any], ids: list[int], model: PreTrainedModel) -> None:
    first, *scores = answer["choices"][0]["logprobs"]["token_logprobs"][: len(ids)]
    rows = reference_logits(model, ids).log_softmax(-1)[:-1]
    own = [float(row[token_id]) for row, token_id in zip(rows, ids[1:], strict=True)]
    assert first is None
    assert scores == pytest.approx(own, abs=1e-3)


def test_sc_09_an_urgent_request_does_not_wait_for_the_long_ones(
    rand: Application, rand_model: PreTrainedModel
) -> None:
    """Two that run leave no room for its prompt: the newer one is put off, and still ends as if nothing had been."""
    long = [prompt(100, seed) for seed in (41, 42)]
    urgent = prompt(300, 43)
    num_preemptions = settled(rand, PREEMPTED)
    bodies = [body_for(ids, 150, priority=5) for ids in long]
    with (
        open_stream(rand, COMPLETIONS, bodies[0]) as one,
        open_stream(rand, COMPLETIONS, bodies[1]) as other,
        ThreadPoolExecutor(2) as pool,
    ):
        begun = [(next(payloads), payloads) for payloads in (one, other)]
        running: list[Future[Streamed]] = [pool.submit(gathered, chain([first], rest)) for first, rest in begun]
        answer = rand.complete(body_for(urgent, 4, priority=-1))
        answered_s = time.monotonic()
        streams = [one.result() for one in running]
    assert tokens_of(answer) == spelled(reference_tokens(rand_model, urgent, 4))
    for ids, streamed in zip(long, streams, strict=True):
        assert streamed.times_s[-1] > answered_s
        assert tokens_of_stream(streamed) == spelled(reference_tokens(rand_model, ids, 150))
        assert streamed.finish_reasons() == ["length"]
    assert settled(rand, PREEMPTED) > num_preemptions


def test_sc_09_a_low_request_outlasts_a_burst_of_urgent_ones(rand: Application, rand_model: PreTrainedModel) -> None:
    urgent, low = [prompt(200, seed) for seed in range(50, 70)], prompt(300, 70)
    with ThreadPoolExecutor(21) as pool:
        burst = [pool.submit(rand.complete, body_for(ids, 4, priority=-1)) for ids in urgent[:10]]
        last = pool.submit(rand.complete, body_for(low, 4, priority=1))
        burst += [pool.submit(rand.complete, body_for(ids, 4, priority=-1)) for ids in urgent[10:]]
        for ids, answer in zip(urgent, burst, strict=True):
            assert tokens_of(answer.result()) == spelled(reference_tokens(rand_model, ids, 4))
        assert tokens_of(last.result()) == spelled(reference_tokens(rand_model, low, 4))
    assert settles(lambda: is_idle(rand))


@pytest.mark.exhaustive
def test_sc_09_equals_do_not_evict_each_other_in_turn(rand: Application, rand_model: PreTrainedModel) -> None:
    """Four requests in a pool for two."""
    prompts = [prompt(40, seed) for seed in range(80, 84)]
    num_preemptions = settled(rand, PREEMPTED)
    answers = at_once(rand, [body_for(ids, 200, priority=3) for ids in prompts])
    for ids, answer in zip(prompts, answers, strict=True):
        assert tokens_of(answer) == spelled(reference_tokens(rand_model, ids, 200))
    assert 0 < settled(rand, PREEMPTED) - num_preemptions <= 4

"""Numbers that steer sampling, over real HTTP: the limits they must have, and transformers' own results."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from tests.helpers_models import prompt, reference_logits, reference_tokens
from tests.integration.asking import CHAT, COMPLETIONS, at_once
from tests.integration.conftest import Application
from tests.integration.sse import stream

pytestmark = pytest.mark.integration

COLD = (0, 1e-3, 1e-4, 1e-5, 1e-6, 1e-9, 1e-12, 5e-324)
GREEDY: list[dict[str, Any]] = [
    *({"temperature": temperature} for temperature in COLD),
    {"top_p": 0.0001}, {"top_k": 1}, {"min_p": 1.0}, {"typical_p": 0.01}, {"seed": 7}, {"seed": 7, "temperature": 1e-9},
    {"temperature": 1, "top_k": 1}, {"temperature": 2, "top_p": 0.0001}, {"temperature": 1, "min_p": 1.0},
    {"n": 2, "best_of": 3}, {"n": 3},
]  # fmt: skip
NUM_TOKENS = 12
CLEAR_GAP = 1e-2


def body_for(token_ids: list[int], max_tokens: int = NUM_TOKENS, **fields: Any) -> dict[str, Any]:
    return {
        "prompt": token_ids, "max_tokens": max_tokens, "ignore_eos": True, "return_token_ids": True, "temperature": 0,
    } | fields  # fmt: skip


def ids_of(answer: dict[str, Any]) -> list[int]:
    ids: list[int] = answer["choices"][0]["token_ids"]
    return ids


@pytest.fixture(scope="module")
def clear_prompts(rand_model: PreTrainedModel) -> list[list[int]]:
    """Prompts whose greedy continuation is never a close call."""
    found = []
    for seed in range(60):
        ids = prompt(5 + seed % 20, seed)
        logits = reference_logits(rand_model, ids + reference_tokens(rand_model, ids, NUM_TOKENS))
        best = logits[len(ids) - 1 : -1].topk(2).values
        if float((best[:, 0] - best[:, 1]).min()) > CLEAR_GAP:
            found.append(ids)
    assert len(found) >= 3
    return found[:3]


def test_nu_02_the_limit_of_small_temperatures_is_greedy(
    rand: Application, rand_model: PreTrainedModel, clear_prompts: list[list[int]]
) -> None:
    for ids in clear_prompts:
        expected = reference_tokens(rand_model, ids, NUM_TOKENS)
        bodies = [body_for(ids, **fields) for fields in GREEDY]
        answers = at_once(rand, bodies)
        if ids is clear_prompts[0]:                        # and one by one, which takes its time
            bodies, answers = bodies * 2, answers + [rand.complete(body) for body in bodies]
        for body, answer in zip(bodies, answers, strict=True):
            assert [choice["token_ids"] for choice in answer["choices"]] == [expected] * body.get("n", 1), body
    rand.assert_alive()


def test_nu_02_streams_and_lists_of_prompts_are_greedy_too(rand: Application, clear_prompts: list[list[int]]) -> None:
    answer = rand.complete(body_for([]) | {"prompt": clear_prompts, "temperature": 1e-7})
    alone = [ids_of(rand.complete(body_for(ids))) for ids in clear_prompts]
    assert [choice["token_ids"] for choice in answer["choices"]] == alone
    streamed = stream(rand, COMPLETIONS, body_for([]) | {"prompt": clear_prompts, "temperature": 1e-7})
    pieces: list[list[int]] = [[], [], []]
    for choice in streamed.choices:
        pieces[choice["index"]] += choice["token_ids"]
    assert pieces == alone


def test_nu_02_a_chat_is_greedy_too(rand: Application) -> None:
    body = {"messages": [{"role": "user", "content": "San Francisco"}], "max_tokens": NUM_TOKENS, "ignore_eos": True}
    answers = []
    for temperature in (0, 1e-12, 1e-6):
        response = rand.post(CHAT, body | {"temperature": temperature, "seed": int(temperature * 1e13)})
        assert response.status_code == 200, response.text
        answers.append(response.json()["choices"])
        assert stream(rand, CHAT, body | {"temperature": temperature}).text() == answers[-1][0]["message"]["content"]
    assert answers == answers[:1] * 3


@torch.inference_mode()
def with_repetition_penalty(model: PreTrainedModel, ids: list[int], penalty: float, count: int) -> list[int]:
    output = model.generate(
        torch.tensor([ids]), max_new_tokens=count, min_new_tokens=count, do_sample=False, eos_token_id=None,
        pad_token_id=0, repetition_penalty=penalty,
    )  # fmt: skip
    tokens: list[int] = output[0, len(ids) :].tolist()
    return tokens


def with_presence_penalty(model: PreTrainedModel, ids: list[int], penalty: float, count: int) -> list[int]:
    """Subtracted from what has been generated, and from nothing else."""
    output: list[int] = []
    for _ in range(count):
        logits = reference_logits(model, ids + output)[-1].clone()
        logits[list(set(output))] -= penalty
        output.append(int(logits.argmax()))
    return output


def holding_their_own_next(model: PreTrainedModel) -> Iterator[tuple[list[int], int]]:
    """(prompt, token): the greedy next token is in the prompt already, and its lead is less than a penalty of 1.9."""
    for seed in range(400):
        ids = prompt(60, seed)
        best = reference_logits(model, ids)[-1].topk(2)
        token = int(best.indices[0])
        if token in ids and 0.2 < float(best.values[0] - best.values[1]) < 1.8:
            yield ids, token


def test_nu_04_repetition_penalty_is_that_of_transformers(rand: Application, rand_model: PreTrainedModel) -> None:
    penalised, plain = prompt(30, 1), [prompt(20 + seed, seed) for seed in range(2, 9)]
    expected = with_repetition_penalty(rand_model, penalised, 1.3, 40)
    assert expected != reference_tokens(rand_model, penalised, 40)
    body = body_for(penalised, 40, repetition_penalty=1.3)
    assert ids_of(rand.complete(body)) == expected
    # Beside others that have none: (d) of the case.
    answers = at_once(rand, [body, *(body_for(ids, 20) for ids in plain)])
    assert [ids_of(answer) for answer in answers] == [
        expected, *(reference_tokens(rand_model, ids, 20) for ids in plain)
    ]  # fmt: skip


@pytest.mark.parametrize("field", ["presence_penalty", "frequency_penalty"])
def test_nu_04_openai_penalties_leave_the_prompt_alone(
    rand: Application, rand_model: PreTrainedModel, field: str
) -> None:
    cases = holding_their_own_next(rand_model)
    for ids, token in (next(cases), next(cases)):
        for fields in ({field: 1.9}, {field: 1.9, "n": 2}, {field: 1.9, "temperature": 1, "top_k": 1}):
            answer = rand.complete(body_for(ids, 1, **fields))
            assert [choice["token_ids"] for choice in answer["choices"]] == [[token]] * fields.get("n", 1)


def test_nu_04_presence_penalty_counts_what_was_generated(rand: Application, rand_model: PreTrainedModel) -> None:
    ids = prompt(12, 4)
    expected = with_presence_penalty(rand_model, ids, 1.9, 20)
    assert expected != reference_tokens(rand_model, ids, 20)
    body = body_for(ids, 20, presence_penalty=1.9)
    assert ids_of(rand.complete(body)) == expected
    streamed = stream(rand, COMPLETIONS, body)
    assert [token for choice in streamed.choices for token in choice["token_ids"]] == expected


def test_nu_04_a_chat_is_penalised_alike(rand: Application, rand_model: PreTrainedModel) -> None:
    messages = [{"role": "user", "content": "abcabc"}]
    ids = rand.post("/tokenize", {"messages": messages}).json()["tokens"]
    for field, value in (("repetition_penalty", 1.3), ("presence_penalty", 1.9), ("frequency_penalty", 1.9)):
        fields = {"max_tokens": 16, "temperature": 0, "ignore_eos": True, "logprobs": True, field: value}
        chat = rand.post(CHAT, {"messages": messages} | fields).json()["choices"][0]["logprobs"]["content"]
        text = rand.complete({"prompt": ids} | fields | {"logprobs": 0})["choices"][0]["logprobs"]
        assert [entry["logprob"] for entry in chat] == text["token_logprobs"]
        assert len(chat) == 16

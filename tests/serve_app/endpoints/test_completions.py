from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from engine.api import GenerationRequest, InvalidRequest, QueueFull, RequestOutput, load_tokenizer
from tests.serve_app.fake_engine import MAX_MODEL_LEN, FakeEngine, Step, script
from tests.serve_app.harness import events, serving

PEPPER = (Step(0x20, " Hot"), Step(0x20, ""), Step(0x8C, ""), Step(0xB6, " 🌶"), Step(0x20, " done"))


async def test_whole_answer(tiny_model: Path) -> None:
    async with serving(FakeEngine(script("Hel", "lo")), tiny_model) as client:
        response = await client.post("/v1/completions", json={"model": "tiny", "prompt": "xyz"})
    body = response.json()
    assert response.status_code == 200
    assert body["object"] == "text_completion"
    assert body["choices"] == [{"index": 0, "text": "Hello", "logprobs": None, "finish_reason": "stop"}]
    assert body["usage"]["prompt_tokens"] == 3
    assert body["usage"]["completion_tokens"] == 3        # EOS counts
    assert body["usage"]["total_tokens"] == 6


async def test_streamed_text_equals_whole_text(tiny_model: Path) -> None:
    async with serving(FakeEngine(PEPPER), tiny_model) as client:
        response = await client.post("/v1/completions", json={"prompt": "xyz", "stream": True})
    *chunks, done = events(response.text)
    assert done == "[DONE]"
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == " Hot 🌶 done"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1


async def test_token_ids_are_told_if_asked_for_streamed_or_whole(tiny_model: Path) -> None:
    ask = {"prompt": "xyz", "return_token_ids": True}
    async with serving(FakeEngine(PEPPER), tiny_model) as client:
        whole = (await client.post("/v1/completions", json=ask)).json()
    async with serving(FakeEngine(PEPPER), tiny_model) as client:
        *chunks, _ = events((await client.post("/v1/completions", json=ask | {"stream": True})).text)
    streamed = [token_id for chunk in chunks for token_id in chunk["choices"][0]["token_ids"]]
    assert streamed == whole["choices"][0]["token_ids"]
    assert streamed[:5] == [step.token_id for step in PEPPER]


@pytest.mark.parametrize(
    ("prompt", "token_ids"),
    [
        ("ab", [(97, 98)]),
        (["a", "b"], [(97,), (98,)]),
        ([0], [(0,)]),
        ([[1, 2], [0, 0]], [(1, 2), (0, 0)]),
    ],
)
async def test_prompt_forms(tiny_model: Path, prompt: object, token_ids: list[tuple[int, ...]]) -> None:
    engine = FakeEngine()
    async with serving(engine, tiny_model) as client:
        response = await client.post("/v1/completions", json={"prompt": prompt})
    assert [choice["index"] for choice in response.json()["choices"]] == list(range(len(token_ids)))
    assert sorted(request.prompt_token_ids for request in engine.requests) == sorted(token_ids)
    assert response.json()["usage"]["prompt_tokens"] == sum(map(len, token_ids))


async def test_choices_share_seed_and_prompt_and_differ_in_choice(tiny_model: Path) -> None:
    engine = FakeEngine()
    async with serving(engine, tiny_model) as client:
        response = await client.post("/v1/completions", json={"prompt": ["a", "bb"], "n": 2})
    body = response.json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"]["prompt_tokens"] == 3            # a prompt counts once
    assert len({request.sampling.seed for request in engine.requests}) == 1
    assert sorted((request.prompt_token_ids, request.choice) for request in engine.requests) == [
        ((97,), 0), ((97,), 1), ((98, 98), 0), ((98, 98), 1),
    ]  # fmt: skip


async def test_echo_precedes_the_answer_once(tiny_model: Path) -> None:
    async with serving(FakeEngine(script("Hel", "lo")), tiny_model) as client:
        whole = await client.post("/v1/completions", json={"prompt": [120, 121], "echo": True})
        streamed = await client.post("/v1/completions", json={"prompt": "xy", "echo": True, "stream": True})
    assert whole.json()["choices"][0]["text"] == "xyHello"
    assert "".join(chunk["choices"][0]["text"] for chunk in events(streamed.text)[:-1]) == "xyHello"


@pytest.mark.parametrize(("skipped", "text"), [(True, "ab"), (False, "a<|im_end|>b")])
async def test_an_echo_of_token_ids_shows_special_tokens_as_the_output_does(
    tiny_model: Path, skipped: bool, text: str
) -> None:
    (eos,) = load_tokenizer(tiny_model).eos_token_ids
    body = {"prompt": [97, eos, 98], "echo": True, "logprobs": 0, "skip_special_tokens": skipped}
    async with serving(FakeEngine(script("c")), tiny_model) as client:
        (choice,) = (await client.post("/v1/completions", json=body)).json()["choices"]
    assert choice["text"] == text + "c"
    assert choice["logprobs"]["text_offset"][-2:] == [text.index("b"), text.index("b") + 1]


async def test_scoring_a_prompt_samples_nothing(tiny_model: Path) -> None:
    request = {"prompt": "xyz", "max_tokens": 0, "echo": True, "logprobs": 1}
    async with serving(FakeEngine(), tiny_model) as client:
        response = await client.post("/v1/completions", json=request)
    choice = response.json()["choices"][0]
    assert choice["text"] == "xyz"
    assert choice["logprobs"]["tokens"] == ["x", "y", "z"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.25, -0.25]
    assert choice["logprobs"]["top_logprobs"][0] is None
    assert choice["logprobs"]["text_offset"] == [0, 1, 2]
    assert response.json()["usage"]["completion_tokens"] == 0


async def test_logprobs_leave_out_the_end_token_and_stream_alike(tiny_model: Path) -> None:
    request = {"prompt": "x", "logprobs": 2}
    async with serving(FakeEngine(script("a", "b")), tiny_model) as client:
        whole = await client.post("/v1/completions", json=request)
        streamed = await client.post("/v1/completions", json=request | {"stream": True})
    logprobs = whole.json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", "b"]
    assert logprobs["top_logprobs"] == [{"A": -1.0, "B": -2.0}] * 2
    pieces = [chunk["choices"][0]["logprobs"] for chunk in events(streamed.text)[:-1]]
    assert {key: [entry for piece in pieces if piece for entry in piece[key]] for key in logprobs} == logprobs


async def test_default_max_tokens_is_the_reference_s(tiny_model: Path) -> None:
    engine = FakeEngine()
    async with serving(engine, tiny_model) as client:
        await client.post("/v1/completions", json={"prompt": "x", "max_tokens": None})
    assert engine.requests[0].sampling.max_tokens == 16


@pytest.mark.parametrize("prompt", [[], [[]], "", [""], [-1], [[1, 2], [-5]], [1.5], [True], {"a": 1}, [["a"]], None])
async def test_odd_prompts_are_refused_by_name(tiny_model: Path, prompt: object) -> None:
    class Strict(FakeEngine):
        def _accept(self, request: GenerationRequest) -> None:
            if not request.prompt_token_ids:
                raise InvalidRequest("the prompt is empty", param="prompt")
            super()._accept(request)

    async with serving(Strict(), tiny_model) as client:
        response = await client.post("/v1/completions", json={"prompt": prompt})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"


@pytest.mark.parametrize("stream", [False, True])
async def test_refusal_by_the_engine_is_a_status_even_when_streaming(tiny_model: Path, stream: bool) -> None:
    class Full(FakeEngine):
        def _accept(self, request: GenerationRequest) -> None:
            raise QueueFull("2 requests are waiting already")

    async with serving(Full(), tiny_model) as client:
        response = await client.post("/v1/completions", json={"prompt": "x", "stream": stream})
    assert response.status_code == 503
    assert response.headers["content-type"] == "application/json"
    assert response.headers["retry-after"] == "1"
    assert response.json()["error"]["code"] == "queue_full"


@pytest.mark.parametrize(
    ("num_prompt_tokens", "max_tokens", "status", "param"),
    [
        (MAX_MODEL_LEN - 1, 1, 200, None),
        (MAX_MODEL_LEN - 1, 2, 400, "max_tokens"),
        (MAX_MODEL_LEN, 1, 400, "prompt"),
        (20 * MAX_MODEL_LEN, 1, 400, "prompt"),
        (8, MAX_MODEL_LEN - 3, 400, "max_tokens"),
        (8, MAX_MODEL_LEN - 8, 200, None),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_what_exceeds_the_context_is_refused_with_the_numbers(
    tiny_model: Path, num_prompt_tokens: int, max_tokens: int, status: int, param: str | None, stream: bool
) -> None:
    request = {"prompt": [1] * num_prompt_tokens, "max_tokens": max_tokens, "stream": stream}
    async with serving(FakeEngine(), tiny_model) as client:
        response = await client.post("/v1/completions", json=request)
    assert response.status_code == status
    if status == 400:
        error = response.json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", param)
        for number in (num_prompt_tokens, max_tokens, MAX_MODEL_LEN):
            assert f" {number}" in error["message"]


async def test_best_of_returns_the_choices_that_the_model_finds_most_likely(tiny_model: Path) -> None:
    class Ranked(FakeEngine):
        async def _answer(self, request: GenerationRequest) -> AsyncIterator[RequestOutput]:
            async for output in super()._answer(request):
                scored = tuple(replace(entry, logprob=-float(request.choice != 2)) for entry in output.logprobs)
                yield output._replace(logprobs=scored, text=f"{request.choice}" if output.text else "")

    async with serving(Ranked(script("a")), tiny_model) as client:
        answer = (await client.post("/v1/completions", json={"prompt": ["x", "y"], "best_of": 4, "n": 2})).json()
    assert [choice["text"] for choice in answer["choices"]] == ["2", "0", "2", "0"]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["choices"][0]["logprobs"] is None
    assert answer["usage"]["completion_tokens"] == 2 * 4 * 2       # all candidates count, and EOS
    assert answer["usage"]["prompt_tokens"] == 2


async def test_a_prompt_is_cut_at_its_beginning_and_echoed_as_it_was_used(tiny_model: Path) -> None:
    engine = FakeEngine()
    async with serving(engine, tiny_model) as client:
        body = {"prompt": "abcdef", "truncate_prompt_tokens": 2, "echo": True}
        answer = (await client.post("/v1/completions", json=body)).json()
    assert engine.requests[0].prompt_token_ids == (101, 102)
    assert answer["choices"][0]["text"] == "efHello"


async def test_prompt_logprobs_have_the_shape_of_vllm(tiny_model: Path) -> None:
    async with serving(FakeEngine(), tiny_model) as client:
        answer = (await client.post("/v1/completions", json={"prompt": "ab", "prompt_logprobs": 0})).json()
    second = {"98": {"logprob": -0.25, "rank": 1, "decoded_token": "b"}}
    assert answer["choices"][0]["prompt_logprobs"] == [None, second]
    assert answer["choices"][0]["logprobs"] is None


async def test_sampling_fields_reach_the_engine(tiny_model: Path) -> None:
    engine = FakeEngine()
    fields = {"typical_p": 0.9, "allowed_token_ids": [7, 9], "bad_words": ["no"], "priority": -3, "user": "me", "n": 2}
    async with serving(engine, tiny_model) as client:
        await client.post("/v1/completions", json={"prompt": "x", **fields})
    first, second = sorted(engine.requests, key=lambda request: request.choice)
    assert (first.priority, first.tenant, first.first_choice_id) == (-3, "me", None)
    assert second.first_choice_id == first.request_id
    sampling = first.sampling
    assert (sampling.typical_p, sampling.allowed_token_ids) == (0.9, (7, 9))
    assert sampling.bad_words == ((110, 111), (32, 110, 111))


async def test_a_stream_that_has_nothing_to_say_yet_is_kept_alive(tiny_model: Path) -> None:
    async with serving(FakeEngine(pause_s=0.05), tiny_model, keep_alive_s=0.01) as client:
        text = (await client.post("/v1/completions", json={"prompt": "x", "stream": True})).text
    assert text.startswith(": keep-alive\n\n")
    *chunks, done = events(text)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "Hello"
    assert done == "[DONE]"


async def test_a_refusal_is_a_status_even_if_streams_begin_early(tiny_model: Path) -> None:
    async with serving(FakeEngine(), tiny_model, keep_alive_s=0.001) as client:
        body = {"prompt": "x", "max_tokens": MAX_MODEL_LEN, "stream": True}
        assert (await client.post("/v1/completions", json=body)).status_code == 400


@pytest.mark.parametrize(
    ("content_type", "status"),
    [("application/json", 200), ("application/json; charset=utf-8", 200), ("APPLICATION/JSON", 200),
     ("text/plain", 415), ("application/x-www-form-urlencoded", 415), ("multipart/form-data; boundary=x", 415)],
)  # fmt: skip
async def test_bodies_must_not_claim_to_be_something_else(tiny_model: Path, content_type: str, status: int) -> None:
    async with serving(FakeEngine(), tiny_model) as client:
        headers = {"content-type": content_type}
        response = await client.post("/v1/completions", content=b'{"prompt":"x"}', headers=headers)
    assert response.status_code == status


@pytest.mark.parametrize(
    ("limits", "fields", "param"),
    [({"max_choices": 2}, {"n": 3}, "n"), ({"max_prompts": 1}, {"prompt": ["a", "b"]}, "prompt"),
     ({"max_stops": 1}, {"stop": ["a", "b"]}, "stop"), ({"max_logprobs": 3}, {"logprobs": 4}, "logprobs")],
)  # fmt: skip
async def test_limits_are_those_of_the_configuration(tiny_model: Path, limits: dict, fields: dict, param: str) -> None:
    async with serving(FakeEngine(), tiny_model, limits=limits) as client:
        response = await client.post("/v1/completions", json={"prompt": "x"} | fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)

import pytest
from pydantic import ValidationError

from serve_app.errors import ApiError, to_api_error
from serve_app.schemas.completions import CompletionRequest


def parse(fields: str) -> CompletionRequest:
    return CompletionRequest.parse(b'{"prompt":"x",' + fields.encode() + b"}")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ('"seed":18446744073709551616', "seed"),
        ('"seed":9223372036854775808', "seed"),
        ('"seed":1.5', "seed"),
        ('"temperature":-0.1', "temperature"),
        ('"temperature":2.1', "temperature"),
        ('"temperature":"hot"', "temperature"),
        ('"typical_p":0', "typical_p"),
        ('"allowed_token_ids":[]', "allowed_token_ids"),
        ('"allowed_token_ids":[-1]', "allowed_token_ids[0]"),
        ('"bad_words":[""]', "bad_words[0]"),
        ('"bad_words":["' + "x" * 300 + '"]', "bad_words"),
        ('"truncate_prompt_tokens":0', "truncate_prompt_tokens"),
        ('"prompt_logprobs":1,"stream":true', "prompt_logprobs"),
        ('"prompt_logprobs":21', "prompt_logprobs"),
        ('"priority":"high"', "priority"),
        ('"user":7', "user"),
        ('"n":129', "n"),
        ('"best_of":129', "best_of"),
        ('"temperature":true', "temperature"),
        ('"top_p":-0.1', "top_p"),
        ('"top_p":0', "top_p"),
        ('"top_p":1.01', "top_p"),
        ('"presence_penalty":2.1', "presence_penalty"),
        ('"frequency_penalty":-2.1', "frequency_penalty"),
        ('"repetition_penalty":0', "repetition_penalty"),
        ('"max_tokens":0', "max_tokens"),
        ('"max_tokens":-1', "max_tokens"),
        ('"max_tokens":2.5', "max_tokens"),
        ('"max_tokens":"7"', "max_tokens"),
        ('"top_k":-5', "top_k"),
        ('"min_p":1.5', "min_p"),
        ('"n":0', "n"),
        ('"stop":""', "stop[0]"),
        ('"stop":[""]', "stop[0]"),
        ('"stop":["a",""]', "stop[1]"),
        ('"stop":[5]', "stop[0]"),
        ('"stop":' + str(["a"] * 17).replace("'", '"'), "stop"),
        ('"stop_token_ids":[-1]', "stop_token_ids[0]"),
        ('"min_tokens":17', "min_tokens"),
        ('"logit_bias":{"7":101}', "logit_bias"),
        ('"logit_bias":{"x":1}', "logit_bias"),
        ('"logit_bias":{"-1":1}', "logit_bias"),
        ('"logprobs":21', "logprobs"),
        ('"suffix":"end"', "suffix"),
        ('"best_of":1,"n":2', "best_of"),
        ('"best_of":2,"n":2,"stream":true', "best_of"),
        ('"stream_options":{"include_usage":true}', "stream_options"),
        ('"stream":true,"stream_options":{"nope":1}', "stream_options.nope"),
        ('"nope":1', "nope"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(fields: str, param: str) -> None:
    with pytest.raises((ValidationError, ApiError)) as refusal:
        parse(fields).sampling(16)
    answer = to_api_error(refusal.value)
    assert answer is not None
    assert answer.status == 400
    assert answer.param is not None
    assert answer.param.startswith(param)


@pytest.mark.parametrize(
    "fields", ['"seed":-1', '"top_k":-1', '"top_k":0', '"suffix":""', '"best_of":2,"n":2', '"user":"me"']
)
def test_values_that_ask_for_nothing_special_are_taken(fields: str) -> None:
    assert parse(fields).sampling(16).top_k == 0


def test_every_field_reaches_the_engine() -> None:
    sampling = parse(
        '"temperature":0.5,"top_p":0.9,"top_k":7,"min_p":0.1,"presence_penalty":1,"frequency_penalty":-1,'
        '"repetition_penalty":1.5,"logit_bias":{"7":-100},"seed":11,"min_tokens":2,"stop":"a","stop_token_ids":[3],'
        '"ignore_eos":true,"include_stop_str_in_output":true,"skip_special_tokens":false'
    ).sampling(16, logprobs=3, prompt_logprobs=2)
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (16, 0.5, 0.9, 7)
    assert (sampling.min_p, sampling.presence_penalty, sampling.frequency_penalty) == (0.1, 1.0, -1.0)
    assert (sampling.repetition_penalty, sampling.logit_bias, sampling.seed) == (1.5, {7: -100.0}, 11)
    assert (sampling.min_tokens, sampling.stop, sampling.stop_token_ids) == (2, ("a",), (3,))
    assert (sampling.ignore_eos, sampling.include_stop_str_in_output) == (True, True)
    assert not sampling.skip_special_tokens
    assert (sampling.logprobs, sampling.prompt_logprobs) == (3, 2)


def test_a_seed_is_drawn_where_none_is_given() -> None:
    request = parse('"seed":null')
    assert request.sampling(16).seed != request.sampling(16).seed

"""Grammars through the whole engine, on a random model that would never keep to them by itself."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from engine.core import EngineCore
from engine.errors import ContextTooLong, InvalidRequest
from engine.outputs import RequestOutput
from engine.request import FinishReason, GenerationRequest
from engine.sampling.grammar.spec import GrammarSpec
from engine.sampling.params import SamplingParams
from engine.text.saved_tokenizer import SavedTokenizer
from engine.text.tokenizer import Tokenizer
from tests.engine.model.driver import load
from tests.engine.model_core import Schedule, build
from tests.engine.sampling.grammar.tokenizers import grammars
from tests.helpers import generation
from tests.helpers_models import rand_config, save_checkpoint
from tests.tiny_tokenizer import tiny_tokenizer

EOS, OTHER_SPECIAL = 256, 257
NO_WHITE_SPACE = dict.fromkeys(map(ord, " \n\r\t"), -100.0)        # as a trained model has it
ROOMY = Schedule(budget=64, block_size=8, num_blocks=256)
TIGHT = Schedule(budget=16, block_size=4, num_blocks=24)
AHEAD = replace(ROOMY, as_on_gpu=True)


def word(text: str, **fields) -> GrammarSpec:
    return GrammarSpec("regex", text, **fields)


PERSON = GrammarSpec("json_schema", json.dumps({
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]{1,9}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}))  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rand")
    save_checkpoint(folder, rand_config(vocab_size=258))
    return load(folder)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(SavedTokenizer(tiny_tokenizer().backend_tokenizer, {}, (EOS,), {}))


@pytest.fixture(scope="module")
def shared_grammars(tokenizer):
    ours = grammars(tokenizer)
    yield ours
    ours.close()


@pytest.fixture(scope="module")
def engine(model, tokenizer, shared_grammars):
    def engine(schedule: Schedule = ROOMY, eos=frozenset({EOS})) -> EngineCore:
        return build(model, schedule, tokenizer=tokenizer, eos_token_ids=eos, grammars=shared_grammars)

    return engine


def asked(name: str, grammar: GrammarSpec | None, max_tokens: int = 200, **sampling) -> GenerationRequest:
    fields = {"temperature": 1.0, "logit_bias": NO_WHITE_SPACE, "seed": 0, **sampling}
    params = SamplingParams(max_tokens=max_tokens, grammar=grammar, **fields)
    return GenerationRequest(name, tuple(b"Say it: "), params)


def steps(core: EngineCore, *requests: GenerationRequest) -> dict[str, list[RequestOutput]]:
    outputs: dict[str, list[RequestOutput]] = {}
    for request in requests:
        core.add_request(request)
    while core.has_work:
        for output in core.step():
            outputs.setdefault(output.request_id, []).append(output)
    return outputs


def merged(outputs: Sequence[RequestOutput]) -> RequestOutput:
    whole = outputs[0]
    for output in outputs[1:]:
        whole = whole.then(output)
    return whole


def serve(core: EngineCore, *requests: GenerationRequest) -> dict[str, RequestOutput]:
    return {name: merged(outputs) for name, outputs in steps(core, *requests).items()}


def one(core: EngineCore, request: GenerationRequest) -> RequestOutput:
    return serve(core, request)[request.request_id]


# ------------------------------------------------------------------------------------------------- random schemas

_leaves = st.one_of(
    st.sampled_from([
        {"type": "boolean"}, {"type": "null"}, {"const": {"k": [1]}}, {"enum": ["x", 2, None, "é🌶"]},
        {"type": "string", "maxLength": 5}, {"type": "string", "pattern": "^[a-f0-9]{2,4}$"},
        {"type": "string", "format": "date"}, {"type": "string", "minLength": 2, "maxLength": 3},
        {"type": "number", "minimum": -1, "exclusiveMaximum": 1}, {"type": ["integer", "null"], "multipleOf": 3},
    ]),
    st.tuples(st.integers(-50, 50), st.integers(0, 500)).map(
        lambda bounds: {"type": "integer", "minimum": bounds[0], "maximum": bounds[0] + bounds[1]}
    ),
)  # fmt: skip


def _object(properties: dict, optional: bool, more: bool) -> dict:
    required = list(properties)[: len(properties) // 2] if optional else list(properties)
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return schema | {"additionalProperties": {"type": "null"}, "maxProperties": len(properties) + 1} if more else schema


def _nested(inner: st.SearchStrategy) -> st.SearchStrategy:
    properties = st.dictionaries(st.sampled_from("abcd"), inner, max_size=3)
    objects = st.builds(_object, properties, st.booleans(), st.booleans())
    arrays = st.builds(lambda items, n: {"type": "array", "items": items, "maxItems": n}, inner, st.integers(0, 2))
    return objects | arrays | st.lists(inner, min_size=1, max_size=3).map(lambda of: {"anyOf": of})


def _referred(schema: dict) -> dict:
    reference = {"$ref": "#/$defs/d"}
    return {"$defs": {"d": schema}, "type": "array", "prefixItems": [reference], "items": reference, "maxItems": 2}


_schemas = st.recursive(_leaves, _nested, max_leaves=5)
schemas = _schemas | _schemas.map(_referred)


def check_schema(engine, schema: dict, seed: int) -> int:
    """How many completions were whole; each of those must be valid."""
    spec = GrammarSpec("json_schema", json.dumps(schema))
    names = [f"{seed}-{i}" for i in range(3)]
    answers = serve(engine(), *(asked(name, spec, 300, seed=seed + i) for i, name in enumerate(names)))
    whole = [answer.text for answer in answers.values() if answer.finish_reason is FinishReason.STOP]
    for text in whole:
        Draft202012Validator(schema).validate(json.loads(text))
    return len(whole)


def test_whatever_is_complete_is_valid(engine):
    counts = []

    @settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(schemas, st.integers(0, 1000))
    def completions(schema, seed):
        try:
            counts.append(check_schema(engine, schema, seed))
        except InvalidRequest as error:                # not every combination is one that can be enforced
            counts.append(None)
            assert "structured" not in str(error)

    completions()
    served = [count for count in counts if count is not None]
    assert len(served) >= 0.8 * len(counts) and sum(served) >= 2.5 * len(served)


@pytest.mark.exhaustive
@settings(max_examples=500, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(schemas, st.integers(0, 1000))
def test_whatever_is_complete_is_valid_for_many_schemas(engine, schema, seed):
    with suppress(InvalidRequest):
        check_schema(engine, schema, seed)


# ---------------------------------------------------------------------------------------------- what may be asked

def test_choices_are_all_found_and_nothing_else(engine):
    choices = word("yes|no|perhaps")
    answers = serve(engine(), *(asked(f"r{seed}", choices, seed=seed) for seed in range(24)))
    assert {answer.text for answer in answers.values()} == {"yes", "no", "perhaps"}
    assert {answer.finish_reason for answer in answers.values()} == {FinishReason.STOP}
    assert {answer.token_ids[-1] for answer in answers.values()} == {EOS}


def test_any_json_object_is_one(engine):
    anything = GrammarSpec("json_schema", '{"type": "object"}')
    bias = NO_WHITE_SPACE | {ord("}"): 6.0, ord('"'): 3.0}
    answers = serve(engine(), *(asked(f"r{i}", anything, 400, seed=i, logit_bias=bias) for i in range(6)))
    whole = [json.loads(a.text) for a in answers.values() if a.finish_reason is FinishReason.STOP]
    assert len(whole) >= 3 and all(isinstance(value, dict) for value in whole)


def test_special_tokens_are_never_drawn_within(engine):
    request = asked("a", word("(?s:.{20})"), logit_bias={EOS: 100.0, OTHER_SPECIAL: 100.0})
    answer = one(engine(), request)
    assert answer.token_ids[-1] == EOS and not {EOS, OTHER_SPECIAL} & set(answer.token_ids[:-1])
    assert len(answer.text) == 20


def test_max_tokens_cut_with_length(engine):
    answer = one(engine(), asked("a", word("[a-z]{50}"), 10))
    assert (answer.num_output_tokens, answer.finish_reason) == (10, FinishReason.LENGTH)
    assert answer.text.isalpha() and len(answer.text) == 10


def test_without_an_end_token_a_complete_text_ends_by_itself(engine):
    ignoring = {"ignore_eos": True}
    for core, sampling in ((engine(eos=frozenset()), {}), (engine(), ignoring), (engine(AHEAD), ignoring)):
        answer = one(core, asked("a", word("[a-z]{7}"), **sampling))
        assert (answer.num_output_tokens, answer.finish_reason) == (7, FinishReason.STOP)
        assert EOS not in answer.token_ids and len(answer.text) == 7


def test_min_tokens_wait_for_an_end_that_can_wait_and_yield_to_one_that_cannot(engine):
    digits = serve(engine(), *(asked(f"r{i}", word("[0-9]+"), 60, min_tokens=12, seed=i) for i in range(4)))
    assert all(len(answer.text) >= 12 for answer in digits.values())
    answer = one(engine(), asked("a", word("ab"), min_tokens=12))
    assert (answer.text, answer.finish_reason) == ("ab", FinishReason.STOP)


def test_stop_strings_end_within_a_grammar(engine):
    answer = one(engine(), asked("a", PERSON, stop=('"age"',)))
    assert answer.text.startswith('{"name":"') and answer.text.endswith('",')
    assert (answer.finish_reason, answer.stop_reason) == (FinishReason.STOP, '"age"')


def test_stop_tokens_end_only_where_the_text_may(engine):
    semicolon = ord(";")
    request = asked("a", word("[a-z]{3}"), stop_token_ids=(semicolon,), logit_bias={semicolon: 100.0})
    answer = one(engine(), request)
    assert answer.stop_reason == semicolon and len(answer.text) == 3


def test_masks_that_leave_nothing_fail_the_request_alone(engine):
    good = asked("good", word("[ab]{5}"))
    bad = asked("bad", word("[ab]{5}"), allowed_token_ids=(ord("x"), EOS))
    answers = serve(engine(), good, bad)
    assert answers["bad"].finish_reason is FinishReason.ERROR and "grammar" in (answers["bad"].error or "")
    assert answers["good"].finish_reason is FinishReason.STOP


def test_allowed_tokens_and_bad_words_hold_within_a_grammar(engine):
    sampling = {"allowed_token_ids": (*b"abc", EOS), "bad_words": (tuple(b"ab"),)}
    answers = serve(engine(), *(asked(f"r{i}", word("[a-z]{8}"), seed=i, **sampling) for i in range(6)))
    assert all(set(a.text) <= set("abc") and "ab" not in a.text and len(a.text) == 8 for a in answers.values())


def test_logprobs_are_those_before_the_mask(engine):
    answer = one(engine(), asked("a", word("[a-z]{6}"), logprobs=3))
    assert len(answer.logprobs) == len(answer.token_ids)
    assert any(entry.rank is not None and entry.rank > 50 for entry in answer.logprobs)


# ------------------------------------------------------------------------------------------ the same in every way

def mixed() -> list[GenerationRequest]:
    free = [asked(f"free{i}", None, 30, seed=i, ignore_eos=True) for i in range(3)]
    return [asked(f"person{i}", PERSON, seed=i) for i in range(4)] + free + [asked("word", word("[a-z]{20}"))]


@pytest.fixture(scope="module")
def alone(engine) -> dict[str, tuple[int, ...]]:
    return {request.request_id: one(engine(), request).token_ids for request in mixed()}


@pytest.mark.parametrize("schedule", [ROOMY, TIGHT, AHEAD, replace(TIGHT, as_on_gpu=True)])
def test_tokens_are_those_of_the_request_alone(engine, alone, schedule):
    core = engine(schedule)
    answers = serve(core, *mixed())
    assert {name: answer.token_ids for name, answer in answers.items()} == alone
    assert (core.stats().num_preemptions > 0) is (schedule.num_blocks == TIGHT.num_blocks)


def test_persons_are_valid(engine, tokenizer, alone):
    for name, token_ids in alone.items():
        if name.startswith("person"):
            Draft202012Validator(json.loads(PERSON.text)).validate(json.loads(tokenizer.decode(token_ids)))


def test_a_drained_request_goes_on_where_it_was(engine, alone):
    first = engine()
    for request in mixed():
        first.add_request(request)
    said: dict[str, tuple[int, ...]] = {}
    for _ in range(9):
        for output in first.step():
            said[output.request_id] = said.get(output.request_id, ()) + output.token_ids
    continuations = first.drain()
    assert any(len(c.request.resume_token_ids) > 5 and c.request.sampling.grammar for c in continuations)
    for name, answer in serve(engine(), *(c.request for c in continuations)).items():
        said[name] += answer.token_ids
    assert said == alone


def test_free_requests_have_the_same_logits_beside_constrained_ones(engine):
    free = asked("free", None, 12, logprobs=5, ignore_eos=True)
    with_others = serve(engine(), free, asked("a", PERSON), asked("b", word("[a-z]{20}")))
    assert with_others["free"].logprobs == one(engine(), free).logprobs


def test_streamed_text_is_the_whole_text(engine, tokenizer):
    pieces = steps(engine(), asked("a", GrammarSpec("regex", "[é日🌶]{8}")))["a"]
    assert len(pieces) > 8
    whole = "".join(piece.text for piece in pieces)
    assert len(whole) == 8 and whole == tokenizer.decode([t for piece in pieces for t in piece.token_ids])


def test_choices_of_one_request_differ_and_are_valid(engine):
    requests = [replace(asked(f"a-{i}", word("[a-z]{12}")), choice=i) for i in range(5)]
    texts = [answer.text for answer in serve(engine(), *requests).values()]
    assert len(set(texts)) == 5 and all(text.isalpha() for text in texts)


# ------------------------------------------------------------------------------------------------------- refusals

@pytest.mark.parametrize("spec", [word("(["), word("a" * 70_000), GrammarSpec("json_schema", "[" * 99 + "]" * 99)])
def test_what_cannot_be_compiled_is_refused_and_leaves_nothing(engine, spec):
    core = engine()
    with pytest.raises(InvalidRequest) as caught:
        core.add_request(asked("a", replace(spec, param="response_format")))
    assert caught.value.param == "response_format"
    assert not core.has_work
    core.check_integrity()
    assert one(core, asked("a", word("ab"))).text == "ab"


def test_a_request_that_can_never_fit_leaves_no_grammar_behind(engine):
    core = engine(ROOMY)
    sampling = SamplingParams(max_tokens=1, grammar=word("a"))
    with pytest.raises(ContextTooLong):
        core.add_request(GenerationRequest("long", (0,) * 100_000, sampling))
    assert not core._held


def test_an_engine_without_grammars_says_so(model):
    with pytest.raises(InvalidRequest, match="no grammars"):
        build(model, ROOMY).add_request(generation("a", [1], 4, {"grammar": word("a")}))

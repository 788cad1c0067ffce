import json

import pytest
from pydantic import ValidationError

from engine.api import GrammarSpec
from serve_app.errors import ApiError, to_api_error
from serve_app.schemas.chat import ChatRequest
from serve_app.schemas.completions import CompletionRequest

SCHEMA = {"type": "object", "properties": {"z": {"enum": [None, 1]}, "a": {"default": None}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def chat(**fields) -> ChatRequest:
    return ChatRequest.parse(json.dumps({"messages": [{"role": "user", "content": "x"}]} | fields).encode())


def completion(**fields) -> CompletionRequest:
    return CompletionRequest.parse(json.dumps({"prompt": "x"} | fields).encode())


def grammar_of(**fields) -> GrammarSpec | None:
    specs = [body.sampling(16).grammar for body in (chat(**fields), completion(**fields))]
    assert specs[0] == specs[1]
    return specs[0]


def refusal_of(**fields) -> ApiError:
    with pytest.raises((ValidationError, ApiError)) as caught:
        chat(**fields)
    refusal = to_api_error(caught.value)
    assert refusal is not None and refusal.status == 400
    return refusal


def form(schema, **fields):
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, **fields}}


@pytest.mark.parametrize("fields", [{}, {"response_format": None}, {"response_format": {"type": "text"}}])
def test_nothing_asked_for_is_no_grammar(fields):
    assert grammar_of(**fields) is None


@pytest.mark.parametrize("strict", [True, False, None])
def test_a_schema_is_enforced_strict_or_not_and_arrives_as_it_was_sent(strict):
    spec = grammar_of(response_format=form(SCHEMA, strict=strict, description=None))
    assert spec is not None and (spec.kind, spec.param) == ("json_schema", "response_format.json_schema.schema")
    assert json.dumps(json.loads(spec.text)) == json.dumps(SCHEMA)  # nulls and the order of keys included


@pytest.mark.parametrize(
    ("fields", "kind", "text", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "json_schema", '{"type": "object"}', "response_format"),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", json.dumps(SCHEMA), "structured_outputs.json"),
        (
            {"structured_outputs": {"json": '{"type":"null"}'}},
            "json_schema",
            '{"type":"null"}',
            "structured_outputs.json",
        ),
        ({"structured_outputs": {"json": True}}, "json_schema", "true", "structured_outputs.json"),
        (
            {"structured_outputs": {"json_object": True}},
            "json_schema",
            '{"type": "object"}',
            "structured_outputs.json_object",
        ),
        ({"structured_outputs": {"regex": "a+", "choice": None}}, "regex", "a+", "structured_outputs.regex"),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, "lark", 'start: "a"', "structured_outputs.grammar"),
        ({"structured_outputs": {"choice": ["a.b", "(c|d)"]}}, "regex", r"a\.b|\(c\|d\)", "structured_outputs.choice"),
        ({"guided_json": SCHEMA}, "json_schema", json.dumps(SCHEMA), "guided_json"),
        ({"guided_regex": "a+"}, "regex", "a+", "guided_regex"),
        ({"guided_choice": ["a"]}, "regex", "a", "guided_choice"),
        ({"guided_grammar": 'start: "a"'}, "lark", 'start: "a"', "guided_grammar"),
    ],
)
def test_each_field_is_a_grammar_that_names_it(fields, kind, text, param):
    spec = grammar_of(**fields)
    assert spec == GrammarSpec(kind, text) and spec.param == param


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"response_format": {"type": "nope"}}, "response_format.type", "'json_object'"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "needs json_schema"),
        (
            {"response_format": {"type": "text", "json_schema": {"name": "a", "schema": {}}}},
            "response_format",
            "has no",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
            "response_format.json_schema.schema",
            "required",
        ),
        ({"response_format": form({}, extra=1)}, "response_format.json_schema.extra", "unknown field"),
        (
            {"response_format": form({}) | {"json_schema": {"name": "a b", "schema": {}}}},
            "response_format.json_schema.name",
            "pattern",
        ),
        ({"response_format": "json"}, "response_format", "dictionary"),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"grammer": "a"}}, "structured_outputs.grammer", "unknown field"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "at least 1"),
        ({"structured_outputs": {"choice": [""]}}, "structured_outputs.choice[0]", "at least 1"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs.json_object", "True"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
            "together",
        ),
        ({"guided_regex": "a", "guided_json": {}}, "guided_regex", "together"),
        ({"guided_decoding_backend": "auto"}, "guided_decoding_backend", "unknown field"),
        ({"tools": [TOOL], "response_format": {"type": "json_object"}}, "tools", "exclude each other"),
    ],
)
def test_refusals_name_the_field(fields, param, says):
    refusal = refusal_of(**fields)
    assert refusal.param == param and says in refusal.message


def test_tools_that_are_not_offered_leave_room_for_a_structure():
    body = chat(tools=[TOOL], tool_choice="none", response_format={"type": "json_object"})
    assert body.sampling(16).grammar is not None

import json

import pytest

from engine.sampling.grammar.checks import GrammarError, check
from engine.sampling.grammar.spec import GrammarSpec


def checked(text, kind="json_schema", max_bytes=1000, max_depth=8, **fields) -> None:
    check(GrammarSpec(kind, text, **fields), max_bytes=max_bytes, max_depth=max_depth)


def nested(depth: int) -> str:
    return '{"items":' * (depth - 1) + "{}" + "}" * (depth - 1)


def test_length_is_counted_in_bytes():
    checked("é" * 500, "regex")
    with pytest.raises(GrammarError, match="1002 bytes long; at most 1000"):
        checked("é" * 501, "regex")


def test_depth_is_bounded():
    checked(nested(8))
    with pytest.raises(GrammarError, match="deeper than 8"):
        checked(nested(9))


def test_depth_that_no_parser_survives_is_refused_alike():
    with pytest.raises(GrammarError, match="nested"):
        checked(nested(100_000), max_bytes=10**7)


@pytest.mark.parametrize("text", ["{", "", "{'a': 1}", "nope"])
def test_json_is_asked_for(text):
    with pytest.raises(GrammarError, match="not valid JSON"):
        checked(text)


def test_lone_surrogates_are_refused():
    with pytest.raises(GrammarError, match="Unicode"):
        checked("\ud800", "regex")


@pytest.mark.parametrize("value", [5, 0.01, 2.5, 1e3, 20_000])
def test_common_multiples_pass(value):
    checked(json.dumps({"multipleOf": value}))


@pytest.mark.parametrize("value", [1_000_003, 1e300, 3.14159265, 10**400])
def test_multiples_that_need_a_huge_automaton_are_refused(value):
    with pytest.raises(GrammarError, match="multipleOf"):
        checked(json.dumps({"items": [{"multipleOf": value}]}))


def test_multiples_that_are_huge_together_are_refused():
    with pytest.raises(GrammarError, match="multipleOf"):
        checked(json.dumps({"allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}]}))


@pytest.mark.parametrize("value", [0, 0.0, True])
def test_what_is_no_multiple_is_refused(value):
    with pytest.raises(GrammarError, match="multipleOf"):
        checked(json.dumps({"multipleOf": value}))


def test_a_property_may_have_that_name():
    checked(json.dumps({"properties": {"multipleOf": {"type": "integer"}}}))


def test_schemas_within_lark_are_looked_into():
    checked('start: %json {"multipleOf": 5}', "lark")
    with pytest.raises(GrammarError, match="multipleOf"):
        checked('start: "a" %json {"multiple\\u004ff": 1000003}', "lark")


def test_lark_of_a_client_names_no_tokens():
    with pytest.raises(GrammarError, match="<\\["):
        checked("start: <[5]>", "lark")
    checked("start: <[5]>", "lark", names_tokens=True)

import json
import threading

import pytest

from engine.sampling.grammar.checks import GrammarError
from engine.sampling.grammar.spec import GrammarSpec
from engine.sampling.grammar.state import GrammarState
from tests.engine.sampling.grammar.tokenizers import BYTE_LEVEL, compiled, follow, grammars


def fits(kind: str, source: str, text: str) -> bool:
    """Whether `text` passes, and the end with it."""
    state = GrammarState(compiled(kind, source), (1,), BYTE_LEVEL.vocab_size)
    return follow(state, text) and bool(state.allowed[0] & 2)


@pytest.mark.parametrize(
    ("schema", "fitting", "others"),
    [
        ({"type": "integer", "minimum": 3, "maximum": 120}, [3, 99, 120], [2, 121, 4.5]),
        ({"type": "string", "pattern": "^[a-c]+$", "minLength": 2}, ["ab"], ["a", "xy"]),
        ({"enum": ["red", 2, None]}, ["red", 2, None], ["green", 3]),
        ({"anyOf": [{"type": "boolean"}, {"type": "array", "items": {"type": "null"}}]}, [True, [None]], [1, [1]]),
        ({"type": "string", "format": "date"}, ["2026-05-04"], ["2026-5-4"]),
        (
            {"$defs": {"n": {"properties": {"n": {"$ref": "#/$defs/n"}}, "additionalProperties": False}},
             "type": "object", "$ref": "#/$defs/n"},
            [{}, {"n": {"n": {}}}], [{"m": 1}, {"n": {"m": 1}}],
        ),
    ],
)  # fmt: skip
def test_schemas_are_enforced(schema, fitting, others):
    source = json.dumps(schema)
    assert [value for value in fitting if not fits("json_schema", source, json.dumps(value))] == []
    assert [value for value in others if fits("json_schema", source, json.dumps(value))] == []


def test_properties_beyond_the_schema_are_those_that_json_schema_allows():
    assert fits("json_schema", '{"type": "object", "properties": {"a": {"type": "null"}}}', '{"a": null, "b": 1}')


@pytest.mark.parametrize("source", ["ab+", "^ab+$"])
def test_regex_is_of_the_whole_text(source):
    assert fits("regex", source, "abb") and not fits("regex", source, "abx") and not fits("regex", source, "xab")


def test_the_schema_true_takes_any_value():
    assert fits("json_schema", "true", '[1, {"a": null}]') and not fits("json_schema", "true", "[1,]")


def test_lark_embeds_schemas():
    source = 'start: "<" item ">"\nitem: %json {"type": "integer"}'
    assert fits("lark", source, "<12>") and not fits("lark", source, "<a>")


@pytest.mark.parametrize(
    ("kind", "source", "why"),
    [
        ("json_schema", '{"type": "string", "pattern": "(["}', "regex parse error"),
        ("json_schema", '{"type": "string", "pattern": "(?=a)b"}', "look-around"),
        ("json_schema", '{"type": "array", "uniqueItems": true}', "uniqueItems"),
        ("json_schema", '{"type": "strin"}', "strin"),
        ("json_schema", '{"$ref": "#/$defs/none"}', "/\\$defs/none"),
        ("json_schema", '{"$ref": "https://example.org/schema"}', "example.org"),
        ("json_schema", '{"$ref": "#"}', "."),
        ("json_schema", '{"type": "integer", "minimum": 5, "maximum": 3}', "minimum"),
        ("json_schema", "[1]", "an object, or true"),
        ("json_schema", "false", "an object, or true"),
        ("regex", "([", "regex"),
        ("regex", "a{3,1}", "regex"),
        ("regex", r"\bword", "look"),
        ("lark", 'start: "a" b', "unknown name"),
        ("lark", "", "[Ee]mpty"),
        ("lark", 'begin: "a"', "start"),
    ],
)
def test_bad_grammars_are_refused_with_the_reason(kind, source, why):
    with pytest.raises(GrammarError, match=why) as caught:
        compiled(kind, source)
    assert "\n" not in str(caught.value) and len(str(caught.value)) <= 301


def _chain(link: str, last: str, separator: str, num_bytes: int) -> str:
    links: list[str] = []
    while sum(map(len, links)) < num_bytes:
        links.append(link % (len(links), len(links) + 1))
    return separator.join([*links, last % len(links)])


def _references(link: str) -> str:
    return '{"$ref":"#/d0",' + _chain(link, '"d%d":{}', ",", 55_000) + "}"


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("json_schema", _references('"d%d":{"properties":{"a":{"$ref":"#/d%d"}}}')),
        ("json_schema", _references('"d%d":{"allOf":[{"$ref":"#/d%d"}]}')),
        ("lark", "start: r0\n" + _chain('r%d: "a" r%d', 'r%d: "b"', "\n", 55_000)),
        ("lark", "start: R0\n" + _chain('R%d: "a" R%d', 'R%d: "b"', "\n", 55_000)),
        ("regex", "(" * 30_000 + "a" + ")" * 30_000),
        ("lark", "start: " + "(" * 30_000 + '"a"' + ")" * 30_000),
    ],
    ids=["properties", "allOf", "rules", "terminals", "groups", "lark groups"],
)  # fmt: skip
def test_long_chains_do_not_overflow_the_stack(kind, source):
    """They would take the process down: only a compile on the threads of Grammars is safe."""
    ours = grammars(max_bytes=65_536, compile_timeout_s=60)
    try:
        future = ours.compiled(GrammarSpec(kind, source))
        error = future.exception(60)
        assert error is None or isinstance(error, GrammarError)
    finally:
        ours.close()


def test_stack_size_of_other_threads_is_as_it_was():
    before = threading.stack_size()
    grammars().close()
    assert threading.stack_size() == before

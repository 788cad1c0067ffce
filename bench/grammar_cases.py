"""What bench.grammars asks of a grammar library: feature by feature, texts that must pass and texts that must not."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Case:
    """One feature; `text` is a JSON schema or a regular expression."""

    feature: str
    kind: str  # json_schema | regex
    text: str
    valid: Sequence[str]
    invalid: Sequence[str]


def _schema(feature: str, schema: Any, valid: Sequence[Any], invalid: Sequence[Any]) -> Case:
    return Case(feature, "json_schema", json.dumps(schema), _texts(valid), _texts(invalid))


def _texts(values: Sequence[Any]) -> list[str]:
    return [json.dumps(value, ensure_ascii=False) for value in values]  # escapes count as one character, or not


def _object(required: Sequence[str] | None = None, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else list(required),
        "additionalProperties": False,
    }


TREE = {
    "$defs": {
        "node": _object(value={"type": "integer"}, children={"type": "array", "items": {"$ref": "#/$defs/node"}})
    },
    "$ref": "#/$defs/node",
}
ORDER = _object(
    id={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{6}$"},
    created={"type": "string", "format": "date-time"},
    status={"enum": ["open", "paid", "shipped"]},
    customer=_object(
        name={"type": "string", "minLength": 1, "maxLength": 60}, email={"type": "string", "format": "email"}
    ),
    lines={
        "type": "array",
        "minItems": 1,
        "maxItems": 20,
        "items": _object(
            sku={"type": "string"}, amount={"type": "integer", "minimum": 1, "maximum": 999}, price={"type": "number"}
        ),
    },
    note={"anyOf": [{"type": "string"}, {"type": "null"}]},
)
AN_ORDER = {
    "id": "DE-004711",
    "created": "2026-05-04T10:11:12Z",
    "status": "paid",
    "customer": {"name": "Zoë Ångström", "email": "zoe@example.org"},
    "lines": [{"sku": "A-1", "amount": 3, "price": 9.5}, {"sku": "B 2 日本", "amount": 999, "price": 0}],
    "note": None,
}
WIDE = _object(**{f"field_{i}": {"type": ["string", "number", "boolean"]} for i in range(200)})
CHOICES = [f"category {i} of the long list" for i in range(1000)]

CASES = (
    _schema("integer", {"type": "integer"}, [0, -12, 123456], [1.5, "1"]),
    _schema("number", {"type": "number"}, [0, -1.25, 1e30], ["1", True]),
    _schema("minimum, maximum", {"type": "integer", "minimum": -3, "maximum": 250}, [-3, 0, 99, 250], [-4, 251, 1000]),
    _schema("exclusive bounds", {"type": "number", "exclusiveMinimum": 0, "maximum": 1}, [0.5, 1, 0.001], [0, 1.5, -1]),
    _schema("multipleOf", {"type": "integer", "multipleOf": 5}, [0, 5, 120], [1, 12]),
    _schema(
        "minLength, maxLength", {"type": "string", "minLength": 2, "maxLength": 4}, ["ab", "日本é🌶"], ["a", "abcde"]
    ),
    _schema("pattern", {"type": "string", "pattern": "^[a-c]+-\\d{2}$"}, ["ab-12"], ["ab-1", "x-12", "ab-123"]),
    _schema("pattern, unanchored", {"type": "string", "pattern": "b.d"}, ["bad", "abide", "abcd"], ["bd", "acd"]),
    _schema("pattern and length", {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3}, ["abc"], ["abcd", "a1"]),
    _schema("enum", {"enum": ["red", 2, None, {"a": 1}]}, ["red", 2, None], ["green", 3]),
    _schema("const", {"const": {"kind": "x"}}, [{"kind": "x"}], [{"kind": "y"}, {}]),
    _schema(
        "required",
        _object(["a"], a={"type": "integer"}, b={"type": "integer"}),
        [{"a": 1}, {"a": 1, "b": 2}],
        [{"b": 2}],
    ),
    _schema("additionalProperties false", _object(a={"type": "integer"}), [{"a": 1}], [{"a": 1, "b": 2}]),
    _schema(
        "additionalProperties schema",
        {"type": "object", "additionalProperties": {"type": "integer"}},
        [{}, {"x": 1, "y": 2}],
        [{"x": "1"}],
    ),
    _schema(
        "additionalProperties open",
        {"type": "object", "properties": {"a": {"type": "integer"}}},
        [{"a": 1, "z": []}],
        [{"a": "1"}],
    ),
    _schema(
        "patternProperties",
        {"type": "object", "patternProperties": {"^n_": {"type": "integer"}}, "additionalProperties": False},
        [{"n_a": 1}],
        [{"n_a": "1"}, {"b": 1}],
    ),
    _schema(
        "minItems, maxItems",
        {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
        [[1], [1, 2, 3]],
        [[], [1, 2, 3, 4]],
    ),
    _schema(
        "prefixItems",
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False, "minItems": 2},
        [[1, "a"]],
        [["a", 1], [1, "a", 2]],
    ),
    _schema("anyOf", {"anyOf": [{"type": "integer"}, _object(a={"type": "string"})]}, [1, {"a": "x"}], ["x", {"a": 1}]),
    _schema(
        "oneOf, disjoint",
        {"oneOf": [_object(k={"const": "a"}), _object(k={"const": "b"}, n={"type": "integer"})]},
        [{"k": "a"}, {"k": "b", "n": 1}],
        [{"k": "b"}, {"k": "c"}],
    ),
    _schema("allOf", {"allOf": [{"type": "integer", "minimum": 5}, {"maximum": 9}]}, [5, 9], [4, 10]),
    _schema(
        "allOf of objects",
        {
            "allOf": [
                {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
                {"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"]},
            ]
        },
        [{"a": 1, "b": "x"}],
        [{"a": 1}, {"a": "1", "b": "x"}],
    ),
    _schema(
        "$ref, recursive",
        TREE,
        [{"value": 1, "children": [{"value": 2, "children": []}]}],
        [{"value": 1, "children": [2]}],
    ),
    _schema("type list", {"type": ["string", "null"]}, ["x", None], [1]),
    _schema("format date", {"type": "string", "format": "date"}, ["2026-05-04"], ["2026-5-4", "yesterday"]),
    _schema("format date-time", {"type": "string", "format": "date-time"}, ["2026-05-04T10:11:12Z"], ["2026-05-04"]),
    _schema("format uuid", {"type": "string", "format": "uuid"}, ["123e4567-e89b-12d3-a456-426614174000"], ["123"]),
    _schema("format email", {"type": "string", "format": "email"}, ["a@example.org"], ["a", "a@"]),
    _schema("format ipv4", {"type": "string", "format": "ipv4"}, ["192.168.0.1"], ["1.2.3", "300.1.1.1"]),
    _schema("format uri", {"type": "string", "format": "uri"}, ["https://example.org/a?b=c"], ["no uri"]),
    _schema("uniqueItems", {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, [[1, 2]], [[1, 1]]),
    _schema(
        "minProperties",
        {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 2},
        [{"a": 1, "b": 2}],
        [{"a": 1}],
    ),
    _schema("not", {"type": "integer", "not": {"const": 3}}, [4], [3]),
    _schema(
        "if, then, else",
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "if": {"required": ["a"]},
            "then": {"required": ["b"]},
        },
        [{"a": 1, "b": 2}],
        [{"a": 1}],
    ),
    _schema("an order", ORDER, [AN_ORDER], [AN_ORDER | {"status": "lost"}]),
    _schema("200 properties", WIDE, [{f"field_{i}": i for i in range(200)}], [{"field_0": 1}]),
    _schema("enum of 1000", {"enum": CHOICES}, [CHOICES[0], CHOICES[999]], ["category 5"]),
    _schema("any JSON object", {"type": "object"}, [{}, AN_ORDER], [[], 1]),
    Case("regex", "regex", r"[A-Z][a-z]+( [A-Z]\.)? \d{3,5}", ["Ada L. 1815", "Bob 123"], ["ada 123", "Ada 12"]),
    Case("regex, Unicode", "regex", r"(日本|é+|\p{Lu}x){2}", ["日本éé", "ÄxÉx"], ["日", "Äé"]),
    Case(
        "regex, alternation of 500", "regex", "|".join(f"word{i}" for i in range(500)), ["word499"], ["word500", "word"]
    ),
)

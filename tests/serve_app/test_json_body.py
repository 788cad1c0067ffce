import pytest

from serve_app.errors import ApiError
from serve_app.json_body import MAX_DEPTH, parse_json


@pytest.mark.parametrize(
    ("body", "value"),
    [(b'{"a": [1, 2.5, "x", null, true]}', {"a": [1, 2.5, "x", None, True]}), ('{"é": "🌶"}'.encode(), {"é": "🌶"}),
     (b"7", 7), (b'{"a": {"k": 1}, "b": {"k": 2}}', {"a": {"k": 1}, "b": {"k": 2}})],
)  # fmt: skip
def test_json_is_read(body, value):
    assert parse_json(body) == value


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"{'a': 1}", "not valid JSON"),
        (b'{"a": 1}{', "not valid JSON"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"a": "\xff"}', "not UTF-8 at byte 7"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b"[" * 100_000, "nested more than"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "nested more than"),
    ],
    ids=str,
)
def test_what_is_not_json_is_refused(body, words):
    with pytest.raises(ApiError, match=words) as refusal:
        parse_json(body)
    assert (refusal.value.status, refusal.value.code) == (400, "invalid_json")


def test_the_deepest_value_allowed_is_read():
    assert parse_json(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH) is not None


def test_a_key_given_twice_is_named():
    with pytest.raises(ApiError, match="'max_tokens' is given twice") as refusal:
        parse_json(b'{"max_tokens": 1, "x": 2, "max_tokens": 1000}')
    assert refusal.value.param == "max_tokens"

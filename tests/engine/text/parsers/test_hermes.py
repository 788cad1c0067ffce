import pytest

from engine.text.parsers.events import Arguments, CallEnd, CallStart, Content
from engine.text.parsers.hermes import MARKERS, HermesParser
from tests.engine.text.parsers.answers import NAMES, Answer, answer_of

CALL = '<tool_call>\n{"name": "f", "arguments": {"x": [1, "}\\""]}}\n</tool_call>'
ARGUMENTS = '{"x": [1, "}\\""]}'


def read(text, hidden=()):
    return answer_of(HermesParser(NAMES, hidden=hidden), text)


@pytest.mark.parametrize("text, content, calls", [
    ("Hello <b>🌶</b> \n", "Hello <b>🌶</b> \n", []),
    ("", "", []),
    (CALL, "", [("f", ARGUMENTS)]),
    (f"{CALL}\n{CALL}", "", [("f", ARGUMENTS)] * 2),
    (f"  Let me see.\n\n{CALL}\n", "  Let me see.", [("f", ARGUMENTS)]),
    (f"{CALL} So\n{CALL} it is. ", "So\n it is. ", [("f", ARGUMENTS)] * 2),
    (f"So\n{CALL}\n{CALL}\n", "So", [("f", ARGUMENTS)] * 2),
    ('<tool_call>{"arguments": {}, "name": "f"}</tool_call>', "", [("f", "{}")]),
    ('<tool_call>{"type": "function", "name": "f", "id": 7, "arguments": {}}</tool_call>', "", [("f", "{}")]),
    ('<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    ('<tool_call>{"name": "\\u0066", "arguments": {}, "note": [{}]}</tool_call>', "", [("f", "{}")]),
])  # fmt: skip
def test_calls_and_the_content_around_them(text, content, calls):
    assert read(text) == Answer(content, calls=calls)


@pytest.mark.parametrize("text", [
    "<tool_call>",
    "<tool_call>\n",
    "a < b <tool_ <tool_call <tool_callx",
    "</tool_call>",
    "<tool_call>get_weather()</tool_call>",
    "<tool_call>[]</tool_call>",
    "<tool_call>{}</tool_call>",
    '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
    '<tool_call>{"name": 5, "arguments": {}}</tool_call>',
    '<tool_call>{"name": "f\\x", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>',
    '<tool_call>{"name": "f", "arguments": null}</tool_call>',
    '<tool_call>{"name": "f", "args": {}}</tool_call>',
    '<tool_call>{"arguments": {}}</tool_call>',
    '<tool_call>{"arguments": {"name": "f"}',
    '<tool_call>{"name" "f"}</tool_call>',
    '<tool_call>{"name": "' + "f" * 1000 + '"}</tool_call>',
    '<tool_call>{"name": "f',
    '  <tool_call>{"name": "f", ',
])  # fmt: skip
def test_what_is_no_call_is_content_to_the_letter(text):
    assert read(text) == Answer(text)


@pytest.mark.parametrize("text, arguments, content", [
    ('<tool_call>{"name": "f", "arguments": {"x": 1}</tool_call>', '{"x": 1}', ""),
    ('<tool_call>{"name": "f", "arguments": {"x": 1</tool_call>', '{"x": 1', ""),
    ('<tool_call>{"name": "f", "arguments": {"x": \'a\'}}</tool_call> b', '{"x": ', "'a'}} b"),
    ('<tool_call>{"name": "f", "arguments": {"x": [1}}</tool_call>', '{"x": [1', "}}"),
    ('<tool_call>{"name": "f", "arguments": {"x": "a</tool_call>', '{"x": "a</tool_call>', ""),
    ('<tool_call>{"name": "f", "arguments": {"x": "a', '{"x": "a', ""),
    ('<tool_call>{"name": "f", "arguments": {', "{", ""),
])  # fmt: skip
def test_a_call_that_goes_wrong_or_is_cut_ends_there(text, arguments, content):
    assert read(text) == Answer(content, calls=[("f", arguments)])


def test_a_call_behind_a_broken_one_is_found():
    assert read(f"<tool_call><tool_call>{CALL}") == Answer("<tool_call><tool_call>", calls=[("f", ARGUMENTS)])


def test_hidden_markers_never_become_content():
    assert read("</tool_call>a<tool_call>{} b", hidden=MARKERS) == Answer("a{} b")
    assert read(f"a{CALL}", hidden=MARKERS) == Answer("a", calls=[("f", ARGUMENTS)])


def test_events_come_with_the_characters_that_decide_them():
    parser = HermesParser(NAMES)
    assert parser.push("Hi") == [Content("Hi")]
    assert parser.push(" <tool") == []
    assert parser.push('_call>{"name": "f", "arguments": ') == []
    assert parser.push("{") == [CallStart(0, "f"), Arguments(0, "{")]
    assert parser.push('"x": "Par') == [Arguments(0, '"x": "Par')]
    assert parser.push('is"}') == [Arguments(0, 'is"}')]
    assert parser.push("}") == []
    assert parser.push("\n") == [CallEnd(0)]
    assert parser.finish() == []

"""What holds for every parser and every text, cut in every way."""

import json
from functools import partial

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text.parsers import gemma
from engine.text.parsers.answer import AnswerParser
from engine.text.parsers.events import CallStart, Content
from engine.text.parsers.formats import REASONING_TAGS, TOOL_FORMATS
from engine.text.parsers.reasoning import ReasoningParser
from tests.engine.text.parsers.answers import NAMES, answer_of, events_of

deterministic = settings(deadline=None, derandomize=True, max_examples=150)
FRAGMENTS = [
    "<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "<think>", "</think>",
    *gemma.GEMMA_4.all, *gemma.FUNCTION_GEMMA.all, "call:f", "<tool_", "</", "[TOOL", "<|", "|>", "f", "g",
    '{"name": "f", "arguments": {', '{"name": "f", "parameters": {}}', '{"name": "', '"arguments": ', '"', "\\", "{",
    "}", "[", "]", ",", ":", ";", " ", "\n", "🌶", "é", "日本", "5", "null", 'x: "}"', "\u2028", "e\u0301",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=20).map("".join)
CUTS = st.lists(st.integers(0, 200), max_size=12)
WORDS = st.text(st.sampled_from([*"ab <{}[]\"\\'|:,\n🌶é"]), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=4,
)
OBJECTS = st.dictionaries(WORDS, VALUES, max_size=2)
NAMES_OF_FORMATS = st.sampled_from(sorted(TOOL_FORMATS))
CALLS = st.lists(st.tuples(st.sampled_from(sorted(NAMES)), OBJECTS), min_size=1, max_size=2)


def pieces(text, cuts):
    ends = sorted({min(cut, len(text)) for cut in cuts} | {len(text)})
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@deterministic
@given(name=NAMES_OF_FORMATS, hides=st.booleans(), is_open=st.booleans(), text=TEXTS, cuts=CUTS)
def test_events_do_not_depend_on_the_cuts(name, hides, is_open, text, cuts):
    def parser():
        format = TOOL_FORMATS[name]
        hidden = format.markers if hides else ()
        reasoning = ReasoningParser(REASONING_TAGS["think"], is_open=is_open, passes=hidden)
        return AnswerParser(reasoning, format.parser(NAMES, hidden=hidden))

    whole = parser().parse(text)
    assert events_of(parser(), pieces(text, cuts)) == whole
    assert events_of(parser(), text) == whole


@deterministic
@given(name=NAMES_OF_FORMATS, text=TEXTS)
def test_a_text_without_calls_is_content_to_the_letter(name, text):
    events = events_of(TOOL_FORMATS[name].parser(NAMES, hidden=()), text)
    if not any(isinstance(event, CallStart) for event in events):
        assert events == ([Content(text)] if text else [])


@deterministic
@given(name=NAMES_OF_FORMATS, text=TEXTS)
def test_hidden_markers_are_never_in_the_content(name, text):
    markers = TOOL_FORMATS[name].markers
    answer = answer_of(TOOL_FORMATS[name].parser(NAMES, hidden=markers), text)
    assert not any(marker in answer.content for marker in markers)


def as_json(key, calls):
    return [json.dumps({"name": name, key: arguments}, ensure_ascii=False) for name, arguments in calls]


def hermes(calls):
    return "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in as_json("arguments", calls))


def llama(calls):
    return "<|python_tag|>" + "; ".join(as_json("parameters", calls))


def mistral_list(calls):
    return f"[TOOL_CALLS] [{', '.join(as_json('arguments', calls))}]"


def mistral_named(calls):
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments)}" for name, arguments in calls)


def gemma_written(value, quote):
    if isinstance(value, dict):
        return "{" + ",".join(f"{quote}{k}{quote}:{gemma_written(v, quote)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(gemma_written(element, quote) for element in value) + "]"
    return f"{quote}{value}{quote}" if isinstance(value, str) else json.dumps(value)


def gemma_calls(calls, marks):
    return "".join(f"{marks.open}call:{name}{gemma_written(args, marks.quote)}{marks.close}" for name, args in calls)


WRITTEN = [
    ("hermes", hermes),
    ("llama3", llama),
    ("mistral", mistral_list),
    ("mistral", mistral_named),
    ("gemma4", partial(gemma_calls, marks=gemma.GEMMA_4)),
    ("functiongemma", partial(gemma_calls, marks=gemma.FUNCTION_GEMMA)),
]  # fmt: skip


@deterministic
@given(
    written=st.sampled_from(WRITTEN),
    calls=CALLS,
    before=st.sampled_from(["", "Well 🌶.", "a < b"]),
    after=st.sampled_from(["", "done", "}x"]),
)
def test_calls_are_read_as_they_were_meant(written, calls, before, after):
    name, write = written
    answer = answer_of(TOOL_FORMATS[name].parser(NAMES, hidden=()), f"{before}\n{write(calls)}\n{after}")
    assert answer.parsed_calls == calls
    assert answer.content.split() == (before + " " + after).split()

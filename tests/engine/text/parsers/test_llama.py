import pytest

from engine.text.parsers.llama import TAG, LlamaParser
from tests.engine.text.parsers.answers import NAMES, Answer, answer_of

CALL = '{"name": "f", "parameters": {"x": "}"}}'
ARGUMENTS = '{"x": "}"}'


def read(text, hidden=(TAG,)):
    return answer_of(LlamaParser(NAMES, hidden=hidden), text)


@pytest.mark.parametrize("text, content, count", [
    (CALL, "", 1),
    (f"\n {CALL}\n", "", 1),
    (f"{TAG}{CALL}", "", 1),
    (f"{CALL}; {CALL}", "", 2),
    (f"{CALL}\n{CALL}", "", 2),
    (f"{TAG}{CALL};{CALL}{TAG} {CALL}", "", 3),
    (f"One moment. {TAG}{CALL} Done.", "One moment. Done.", 1),
    (CALL.replace("parameters", "arguments"), "", 1),
    (CALL.replace("{", '{"type": "function", ', 1), "", 1),
    (f"{CALL}; or not", "; or not", 1),
])  # fmt: skip
def test_calls_alone_and_behind_the_tag(text, content, count):
    assert read(text) == Answer(content, calls=[("f", ARGUMENTS)] * count)


@pytest.mark.parametrize("text", [
    f"The answer is {CALL}",
    '{"name": "Ada", "parameters": {}}',
    '{"answer": 42}',
    '{"name": "f", "parameters": [1]}',
    "{",
    " [1, 2]\n",
    "Hello",
])  # fmt: skip
def test_other_answers_are_content_json_among_them(text):
    assert read(text) == Answer(text)


def test_the_tag_is_hidden_if_it_is_a_special_token():
    assert read(f'{TAG}brave_search.call(query="x")') == Answer('brave_search.call(query="x")')
    assert read(f"a{TAG}b", hidden=()) == Answer(f"a{TAG}b")

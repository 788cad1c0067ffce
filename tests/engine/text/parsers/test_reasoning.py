import pytest

from engine.text.parsers.answer import AnswerParser
from engine.text.parsers.events import Reasoning
from engine.text.parsers.formats import REASONING_TAGS
from engine.text.parsers.hermes import HermesParser
from engine.text.parsers.reasoning import ReasoningParser
from tests.engine.text.parsers.answers import NAMES, Answer, answer_of

THINK = REASONING_TAGS["think"]
CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


def read(text, *, is_open=False, hidden=(), tags=THINK):
    return answer_of(ReasoningParser(tags, is_open=is_open, hidden=hidden), text)


@pytest.mark.parametrize("text, reasoning, content", [
    ("<think>\nHm.\n\nSo.\n</think>\n\nYes. \n", "Hm.\n\nSo.", "Yes. \n"),
    ("\n<think>Hm 🌶</think>", "Hm 🌶", ""),
    ("<think>\n\n</think>\n\nYes", "", "Yes"),
    ("<think>Hm </thin", "Hm </thin", ""),
    ("<think>", "", ""),
    ("Yes <think>no</think>", "", "Yes <think>no</think>"),
    ("<thin", "", "<thin"),
    (" <thought> ", "", " <thought> "),
    ("Yes</think> no", "", "Yes</think> no"),
    ("<think>a</think>b<think>c</think>", "a", "b<think>c</think>"),
])  # fmt: skip
def test_reasoning_comes_first_or_not_at_all(text, reasoning, content):
    assert read(text) == Answer(content, reasoning)


@pytest.mark.parametrize("text, reasoning, content", [
    ("Hm.\n</think>\n\nYes", "Hm.", "Yes"),
    ("</think>Yes", "", "Yes"),
    ("Hm", "Hm", ""),
])  # fmt: skip
def test_the_prompt_may_have_opened_it(text, reasoning, content):
    assert read(text, is_open=True) == Answer(content, reasoning)


@pytest.mark.parametrize("prompt, is_open", [
    ("<|im_start|>assistant\n<think>\n", True),
    ("<|im_start|>assistant\n", False),
    ("<|im_start|>assistant\n<think>\n\n</think>\n\n", False),
    ("what is <think>?<|im_start|>assistant\n", False),
])  # fmt: skip
def test_whether_the_prompt_has_opened_it(prompt, is_open):
    assert THINK.opened_by(prompt) is is_open


def test_special_tokens_are_hidden_wherever_they_are_not_tags():
    tags = REASONING_TAGS["mistral"]
    text = "[THINK]a[THINK]b[/THINK]c[/THINK]d"
    assert read(text, tags=tags, hidden=tags.tokens) == Answer("cd", "ab")
    assert read(text, tags=tags) == Answer("c[/THINK]d", "a[THINK]b")


def test_what_others_deal_with_is_hidden_in_the_reasoning_only():
    parser = ReasoningParser(THINK, is_open=True, passes=("<tool_call>",))
    assert answer_of(parser, "a<tool_call>b</think><tool_call>c") == Answer("<tool_call>c", "ab")


def test_gemma_s_channel():
    tags = REASONING_TAGS["gemma4"]
    assert read("<|channel>thought\nHm<channel|>Yes", tags=tags, hidden=tags.tokens) == Answer("Yes", "Hm")


def test_calls_are_looked_for_behind_the_reasoning_only():
    parser = AnswerParser(ReasoningParser(THINK, is_open=False), HermesParser(NAMES))
    assert answer_of(parser, f"<think>{CALL}</think>\nSo:\n{CALL}") == Answer("So:", CALL, calls=[("f", "{}")])


def test_calls_beyond_the_allowed_are_left_out():
    parser = AnswerParser(calls=HermesParser(NAMES), max_calls=1)
    assert answer_of(parser, f"a{CALL}{CALL}b") == Answer("ab", calls=[("f", "{}")])


def test_reasoning_comes_as_it_is_written():
    parser = ReasoningParser(THINK, is_open=True)
    assert parser.push("Hm") == [Reasoning("Hm")]
    assert parser.push(" so") == [Reasoning(" so")]

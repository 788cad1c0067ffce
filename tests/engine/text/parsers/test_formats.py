import pytest
from tokenizers import AddedToken

from engine.text.parsers.events import CallStart, Content, Reasoning
from engine.text.parsers.formats import REASONING_TAGS, TOOL_FORMATS, answer_format
from engine.text.parsers.hermes import HermesParser
from tests.engine.text import tiny

QWEN = "{% if tools %}return within <tool_call></tool_call>{% endif %}"
THINKING = QWEN + "{% set content = message.content.split('</think>')[-1] %}"


def tokenizer(template, special=()):
    pipeline = tiny.byte_level()
    pipeline.add_special_tokens([AddedToken(token, special=True) for token in special])
    return tiny.wrap(pipeline, chat_templates={} if template is None else {"default": template})


@pytest.mark.parametrize("template, tools, reasoning", [
    (None, None, None),
    ("{{ messages }}", None, None),
    (QWEN, "hermes", None),
    (THINKING, "hermes", "think"),
    (QWEN + "<function=example>", None, None),
    ("{{ '[TOOL_CALLS]' }}[/THINK]", "mistral", "mistral"),
    ("Environment: ipython", "llama3", None),
    ("<|tool_call>call: <|channel>thought<channel|>", "gemma4", "gemma4"),
    ("<start_function_call>", "functiongemma", None),
])  # fmt: skip
def test_formats_are_found_in_the_template(template, tools, reasoning):
    found = answer_format(tokenizer(template))
    assert found.tools == (tools and TOOL_FORMATS[tools])
    assert found.reasoning == (reasoning and REASONING_TAGS[reasoning])


def test_formats_may_be_chosen():
    found = answer_format(tokenizer(THINKING), tool_parser="llama3", reasoning_parser="none")
    assert (found.tools, found.reasoning) == (TOOL_FORMATS["llama3"], None)
    assert answer_format(tokenizer(QWEN), tool_parser="none").tools is None


def test_markers_are_kept_where_they_are_special_tokens():
    model = tokenizer(THINKING, special=("<tool_call>", "</think>", "<|other|>"))
    found = answer_format(model)
    tool_call, think = model.special_token_id("<tool_call>"), model.special_token_id("</think>")
    assert model.special_token_id("</tool_call>") is None
    assert set(found.kept_token_ids(with_tools=True)) == {tool_call, think}
    assert found.kept_token_ids(with_tools=False) == (think,)


def test_the_token_that_hands_over_to_the_tools_ends_an_answer():
    model = tokenizer("<start_function_call>", special=("<start_function_response>",))
    assert answer_format(model).stop_token_ids == (model.special_token_id("<start_function_response>"),)


def test_a_parser_is_made_for_what_the_answer_may_hold():
    found = answer_format(tokenizer(THINKING))
    call = '<tool_call>{"name": "f"}</tool_call>'
    assert [type(event) for event in found.parser("", {"f"}).parse(f"<think>a</think>{call}")][:2] == [
        Reasoning, CallStart,
    ]  # fmt: skip
    assert found.parser("").parse(call) == [Content(call)]
    assert found.parser("<think>\n").parse("a") == [Reasoning("a")]
    assert answer_format(tokenizer(QWEN)).parser("") is None


def test_special_markers_are_hidden_unless_the_client_wants_to_see_them():
    found = answer_format(tokenizer(QWEN, special=("<tool_call>",)))
    assert found.parser("", {"f"}).parse("<tool_call>x") == [Content("x")]
    assert found.parser("", {"f"}, is_raw=True).parse("<tool_call>x") == [Content("<tool_call>x")]


def test_no_sign_of_a_format_is_a_sign_of_another():
    for name, format in TOOL_FORMATS.items():
        for sign in format.signs:
            assert answer_format(tokenizer(sign)).tools is format, name
    assert TOOL_FORMATS["hermes"].parser is HermesParser

import pytest

from engine.text.parsers.mistral import MARKERS, MistralParser
from tests.engine.text.parsers.answers import NAMES, Answer, answer_of

CALL = '{"name": "f", "arguments": {"x": "]"}}'
ARGUMENTS = '{"x": "]"}'


def read(text, hidden=MARKERS):
    return answer_of(MistralParser(NAMES, hidden=hidden), text)


@pytest.mark.parametrize("text, content, count", [
    (f"[TOOL_CALLS] [{CALL}]", "", 1),
    (f"[TOOL_CALLS][{CALL}, {CALL}]\n", "", 2),
    (f"[TOOL_CALLS] [{CALL[:-1]}, \"id\": \"123456789\"}}]", "", 1),
    (f"[TOOL_CALLS] [{CALL}", "", 1),
    (f"[TOOL_CALLS] [{CALL}, oops", ", oops", 1),
    (f"Yes. [TOOL_CALLS] [{CALL}] [1]", "Yes.  [1]", 1),
    (f"[TOOL_CALLS]f[ARGS]{ARGUMENTS}", "", 1),
    (f"[TOOL_CALLS]f {ARGUMENTS}", "", 1),
    (f"[TOOL_CALLS]f[ARGS]{ARGUMENTS}[TOOL_CALLS] f[CALL_ID]abc[ARGS] {ARGUMENTS}", "", 2),
    (f"Yes. [TOOL_CALLS]f[ARGS]{ARGUMENTS} Done", "Yes.  Done", 1),
])  # fmt: skip
def test_lists_and_named_calls(text, content, count):
    assert read(text) == Answer(content, calls=[("f", ARGUMENTS)] * count)


@pytest.mark.parametrize("text", [
    "[TOOL_CALLS]", "[TOOL_CALLS] []", "[TOOL_CALLS] [5]", "[TOOL_CALLS]f", "[TOOL_CALLS]f[ARGS]",
    "[TOOL_CALLS]f[ARGS]5",
    "[TOOL_CALLS]g[ARGS]{}", "[TOOL_CALLS]f[CALL_ID]x{}", "[TOOL_CALLS]f[X]{}", "[TOOL", "[1, 2]", "[TOOL_CALLS]{}",
    '[TOOL_CALLS] [{"name": "g", "arguments": {}}]', "[TOOL_CALLS]" + "f" * 1000 + "{}",
])  # fmt: skip
def test_what_is_no_call_is_content(text):
    assert read(text, hidden=()) == Answer(text)
    assert not any(marker in read(text).content for marker in MARKERS)


def test_arguments_that_break_off():
    assert read('[TOOL_CALLS]f[ARGS]{"x": 1') == Answer(calls=[("f", '{"x": 1')])
    assert read('[TOOL_CALLS]f[ARGS]{"x": <} y') == Answer("<} y", calls=[("f", '{"x": ')])


@pytest.mark.parametrize("broken", ["[TOOL_CALLS]", "[TOOL_CALLS]f", "[TOOL_CALLS]f[ARGS", "[TOOL_CALLS] [", "["])
def test_a_call_behind_a_broken_one_is_found(broken):
    assert read(f"{broken}[TOOL_CALLS] [{CALL}]", hidden=()) == Answer(broken, calls=[("f", ARGUMENTS)])

import pytest

from engine.errors import InvalidRequest
from engine.text.messages import plain_messages

CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_te_05_text_parts_are_joined_with_nothing_between(role):
    parts = [{"type": "text", "text": "Say"}, {"type": "text", "text": " hi", "annotations": None}]
    assert plain_messages([{"role": role, "content": parts}]) == [{"role": role, "content": "Say hi"}]


@pytest.mark.parametrize("content, message", [
    ([], "must be a string or a list of parts"),
    (5, "must be a string or a list of parts"),
    (None, "has no content"),
    ([{"type": "image_url", "image_url": {"url": "x"}}], "takes text only"),
    ([{"type": "nope"}], "unknown type: 'nope'"),
    (["hi"], "unknown type: None"),
    ([{"type": "text"}], r"content\[0\].text must be a string"),
    ([{"type": "text", "text": None}], r"content\[0\].text must be a string"),
    ([{"type": "text", "text": "a"}, {"type": "text", "text": "b", "colour": "red"}], r"content\[1\].*field 'colour'"),
])  # fmt: skip
def test_te_05_other_content_is_refused(content, message):
    with pytest.raises(InvalidRequest, match=message) as refusal:
        plain_messages([{"role": "user", "content": content}])
    assert refusal.value.param == "messages"


def test_null_content_is_absent_beside_tool_calls():
    (plain,) = plain_messages([{"role": "assistant", "content": None, "tool_calls": [CALL]}])
    assert "content" not in plain
    assert plain["tool_calls"][0]["function"] == {"name": "f", "arguments": {"x": 1}}


def test_an_answer_that_was_cut_in_its_reasoning_has_empty_content():
    message = {"role": "assistant", "content": None, "reasoning_content": "Hm"}
    assert plain_messages([message]) == [{"role": "assistant", "content": "", "reasoning_content": "Hm"}]
    with pytest.raises(InvalidRequest, match="has no content"):
        plain_messages([message | {"role": "user"}])


@pytest.mark.parametrize("call", [{"function": {"name": "f", "arguments": "{"}}, {"id": "1"}, "f"])
def test_malformed_tool_calls_are_refused(call):
    with pytest.raises(InvalidRequest, match="tool_calls"):
        plain_messages([{"role": "assistant", "tool_calls": [call]}])


@pytest.mark.parametrize("messages", [[], [{"content": "hi"}], ["hi"], [{"role": None, "content": "hi"}]])
def test_messages_without_a_role_are_refused(messages):
    with pytest.raises(InvalidRequest):
        plain_messages(messages)


def test_developer_is_system_for_templates_that_do_not_know_it():
    messages = [{"role": "developer", "content": "be brief"}]
    assert plain_messages(messages)[0]["role"] == "system"
    assert plain_messages(messages, keep_developer=True)[0]["role"] == "developer"


def test_the_caller_s_messages_stay_as_they_are():
    messages = [{"role": "assistant", "content": None, "tool_calls": [CALL]}]
    plain_messages(messages)
    assert messages[0]["content"] is None
    assert messages[0]["tool_calls"] == [CALL]

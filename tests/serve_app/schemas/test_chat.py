import pytest
from pydantic import ValidationError

from serve_app.errors import ApiError, to_api_error
from serve_app.schemas.chat import ChatRequest

MESSAGES = b'"messages":[{"role":"user","content":"hi"}]'


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (b'"tools":[{"type":"function"}]', "tools[0].function"),
        (b'"tool_choice":"required"', "tool_choice"),
        (b'"functions":[{}]', "functions"),
        (b'"modalities":["audio"]', "modalities"),
        (b'"reasoning_effort":"high"', "reasoning_effort"),
        (b'"top_logprobs":2', "top_logprobs"),
        (b'"logprobs":true,"top_logprobs":21', "top_logprobs"),
        (b'"logprobs":2', "logprobs"),
        (b'"max_tokens":0', "max_tokens"),
        (b'"max_completion_tokens":0', "max_completion_tokens"),
        (b'"max-tokens":5', "max-tokens"),
        (b'"stream_options":{"include usage":true},"stream":true', "stream_options.include usage"),
    ],
)
def test_what_would_change_the_output_and_cannot_be_served_is_refused(fields: bytes, param: str) -> None:
    with pytest.raises((ValidationError, ApiError)) as refusal:
        ChatRequest.parse(b"{" + MESSAGES + b"," + fields + b"}")
    answer = to_api_error(refusal.value)
    assert answer is not None
    assert (answer.status, answer.param) == (400, param)


@pytest.mark.parametrize(
    "fields",
    [
        b'"tools":[]', b'"tool_choice":"auto"', b'"response_format":{"type":"text"}', b'"modalities":["text"]',
        b'"parallel_tool_calls":true', b'"store":false', b'"metadata":{}', b'"service_tier":"auto"',
    ],
)  # fmt: skip
def test_what_asks_for_nothing_is_taken(fields: bytes) -> None:
    assert ChatRequest.parse(b"{" + MESSAGES + b"," + fields + b"}").n == 1


@pytest.mark.parametrize(
    ("fields", "num_free_tokens", "expected"),
    [
        (b"", 5, 5),
        (b"", -3, 1),                                    # for the engine to refuse, with its numbers
        (b',"max_tokens":9', 5, 9),
        (b',"max_tokens":9,"max_completion_tokens":2', 5, 2),
    ],
)
def test_max_tokens(fields: bytes, num_free_tokens: int, expected: int) -> None:
    assert ChatRequest.parse(b"{" + MESSAGES + fields + b"}").max_tokens_within(num_free_tokens) == expected


@pytest.mark.parametrize("content", ["5", "[null]", '["hi"]', "[[]]", '{"type":"text","text":"hi"}'])
def test_te_05_content_of_neither_shape_is_refused_by_its_name(content: str) -> None:
    with pytest.raises(ValidationError) as refusal:
        ChatRequest.parse(b'{"messages":[{"role":"user","content":' + content.encode() + b"}]}")
    answer = to_api_error(refusal.value)
    assert answer is not None
    assert (answer.status, answer.param) == (400, "messages[0].content")
    assert "a string or a list of parts" in answer.message

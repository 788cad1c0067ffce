from engine.api import TOOL_FORMATS, AnswerParser
from serve_app.deltas import Deltas, message


def hermes() -> Deltas:
    ids = iter("abc")
    return Deltas(AnswerParser(calls=TOOL_FORMATS["hermes"].parser({"f"}, hidden=())), lambda: next(ids))


def call(index: int, arguments: str) -> dict[str, object]:
    return {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}


def test_without_a_parser_text_is_content():
    deltas = Deltas(None, str)
    assert deltas.first == {"role": "assistant", "content": ""}
    assert deltas.read("<tool_call>", is_last=False) == [{"content": "<tool_call>"}]
    assert deltas.read("", is_last=True) == []
    assert not deltas.has_calls


def test_calls_come_piece_by_piece():
    deltas = hermes()
    assert deltas.first == {"role": "assistant", "content": None}
    assert deltas.read('Ok <tool_call>{"name": "f", "arguments": ', is_last=False) == [{"content": "Ok"}]
    function = {"name": "f", "arguments": ""}
    start = {"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": function}]}
    assert deltas.read('{"x": ', is_last=False) == [start, call(0, '{"x": ')]
    assert deltas.read("1}", is_last=False) == [call(0, "1}")]
    assert deltas.read("}</tool", is_last=False) == []
    assert deltas.read("_call>", is_last=True) == []
    assert deltas.has_calls


def test_the_message_is_what_the_deltas_make_up():
    text = 'Ok <tool_call>{"name": "f"}</tool_call><tool_call>{"name": "f", "arguments": {"x": "🌶"}}</tool_call>'
    whole = message(hermes().read(text, is_last=True))
    deltas = hermes()
    pieces = [delta for character in text for delta in deltas.read(character, is_last=False)]
    assert message([deltas.first, *pieces, *deltas.read("", is_last=True)]) == whole
    assert whole == {
        "role": "assistant",
        "content": "Ok",
        "refusal": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            {"id": "b", "type": "function", "function": {"name": "f", "arguments": '{"x": "🌶"}'}},
        ],
    }


def test_content_is_null_only_beside_calls_or_reasoning():
    assert message([])["content"] == ""
    assert message([{"reasoning_content": "Hm"}])["content"] is None

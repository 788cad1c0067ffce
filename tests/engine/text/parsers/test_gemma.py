import pytest

from engine.text.parsers.gemma import FUNCTION_GEMMA, GEMMA_4, GemmaParser
from tests.engine.text.parsers.answers import NAMES, Answer, answer_of


def read(text, marks=GEMMA_4, hidden=()):
    """`text` has «» for the marks around a call and ' for quotes."""
    replaced = text.replace("«", marks.open).replace("»", marks.close).replace("'", marks.quote)
    return answer_of(GemmaParser(NAMES, marks=marks, hidden=hidden), replaced)


@pytest.mark.parametrize("marks", [GEMMA_4, FUNCTION_GEMMA])
@pytest.mark.parametrize("call, arguments", [
    ("f{}", {}),
    ("get_weather{location:'Tōkyō, \"Japan\"\n{}',days:3}", {"location": 'Tōkyō, "Japan"\n{}', "days": 3}),
    ("f{a:true,b:false,c:null,d:-1.5e3}", {"a": True, "b": False, "c": None, "d": -1500.0}),
    ("f{a:['x','y'],b:{c:[],d:{e:1}}}", {"a": ["x", "y"], "b": {"c": [], "d": {"e": 1}}}),
    ("f{ a : 'x' , b : [ 1 , 2 ] , }", {"a": "x", "b": [1, 2]}),
    ("f{'a':1,\"b c\":\"d\\\"\"}", {"a": 1, "b c": 'd"'}),
    ("f{a:NaN,b:1x,c:some words}", {"a": "NaN", "b": "1x", "c": "some words"}),
    ("f{a:'<|<esc<tool'}", {"a": "<|<esc<tool"}),
])  # fmt: skip
def test_arguments_become_json(marks, call, arguments):
    answer = read(f"Well. «call:{call}» «call:f{{}}»", marks)
    name = call.partition("{")[0]
    assert (answer.content, answer.parsed_calls) == ("Well.", [(name, arguments), ("f", {})])


@pytest.mark.parametrize(
    "text", ["«", "«call:", "«f{}»", "«call:g{}»", "«call:f»", "«call:f", "a < b", "»", "«call:f,{}»"]
)
def test_what_is_no_call_is_content(text):
    assert read(text) == Answer(text.replace("«", GEMMA_4.open).replace("»", GEMMA_4.close))
    hidden = read(text, hidden=GEMMA_4.all).content
    assert hidden == text.replace("«", "").replace("»", "")


@pytest.mark.parametrize("text, arguments, content", [
    ("«call:f{a:'x", '{"a":"x', ""),
    ("«call:f{a:1", '{"a":', ""),
    ("«call:f{a", "{", ""),
    ("«call:f{a:1»", '{"a":1', ""),
    ("«call:f{a:}» b", '{"a":', "} b"),
    ("«call:f{a:" + "[" * 100 + "»", '{"a":' + "[" * 64, "[" * 36),
])  # fmt: skip
def test_a_call_that_goes_wrong_or_is_cut_ends_there(text, arguments, content):
    assert read(text) == Answer(content, calls=[("f", arguments)])

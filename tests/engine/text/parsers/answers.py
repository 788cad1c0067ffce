"""Answers as clients see them: what a parser makes of a text."""

import json
from dataclasses import dataclass, field
from typing import Any

from engine.text.parsers.events import Arguments, CallEnd, CallStart, Content, Reasoning, merged

NAMES = frozenset({"f", "get_weather"})


@dataclass
class Answer:
    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)     # name, arguments

    @property
    def parsed_calls(self) -> list[tuple[str, Any]]:
        return [(name, json.loads(arguments)) for name, arguments in self.calls]


def events_of(parser, pieces):
    return merged([event for piece in pieces for event in parser.push(piece)] + parser.finish())


def answer_of(parser, text):
    """Of `text` in single characters; checks that events come in an order that makes sense."""
    answer = Answer()
    is_in_call = False
    for event in events_of(parser, text):
        match event:
            case Content(piece):
                assert piece and not is_in_call
                answer.content += piece
            case Reasoning(piece):
                assert piece and not is_in_call and not answer.content and not answer.calls
                answer.reasoning += piece
            case CallStart(index, name):
                assert not is_in_call and index == len(answer.calls)
                answer.calls.append((name, ""))
                is_in_call = True
            case Arguments(index, piece):
                assert is_in_call and index == len(answer.calls) - 1
                answer.calls[-1] = (answer.calls[-1][0], answer.calls[-1][1] + piece)
            case CallEnd(index):
                assert is_in_call and index == len(answer.calls) - 1
                is_in_call = False
    assert not is_in_call
    return answer

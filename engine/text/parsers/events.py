"""What parsers find in an answer: frozen values, in the order of the text."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the model to itself."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of the function `name` begins."""

    index: int                                     # among the calls of the answer
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """A piece of the JSON object that call `index` passes."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """Call `index` is complete, or as complete as it gets."""

    index: int


Event = Content | Reasoning | CallStart | Arguments | CallEnd


def merged(events: Iterable[Event]) -> list[Event]:
    """`events` with neighbours of one kind, and of one call, as one: the same for every cut of the same text."""
    result: list[Event] = []
    for _, (first, *others) in groupby(events, lambda event: (type(event), getattr(event, "index", None))):
        if isinstance(first, Content | Reasoning | Arguments):
            rest = "".join(event.text for event in others if isinstance(event, Content | Reasoning | Arguments))
            result.append(replace(first, text=first.text + rest))
        else:
            result += [first, *others]
    return result

"""How calls are spelled, for grammars that make a model spell them so; the source is llguidance's variety of Lark."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.text.parsers.reasoning import ReasoningTags

_SPECIAL_IN_REGEX = re.compile(r"([\\.+*?()|\[\]{}^$#&\-~/])")
_GAP = r"/\s{0,4}/"                                # between reasoning and calls
# Without a bound a small model may go on with white space until max_tokens.
_JSON_OPTIONS = {"whitespace_flexible": True, "whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,40}"}


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """begin, then calls with separators between them, then end. A call: head, name, middle, JSON arguments, tail."""

    head: str
    middle: str
    tail: str
    separator: str = ""
    begin: str = ""
    end: str = ""
    trigger: str = ""                              # what begin or head starts with, and content never holds
    opening: str = ""                              # without a trigger: with what no content begins


@dataclass(frozen=True, slots=True)
class Function:
    """What a call may look like."""

    name: str
    parameters: Mapping[str, Any]                  # a JSON schema


def calls_grammar(
    syntax: CallSyntax,
    functions: Sequence[Function],
    special_tokens: Mapping[str, int],
    *,
    several: bool,
    must_call: bool,
    reasoning: ReasoningTags | None = None,
    is_reasoning_open: bool = False,
) -> str:
    """A grammar of answers that call `functions` with valid arguments.

    With `must_call` an answer is calls, behind reasoning at most; otherwise it is content with calls in it, or
    without. `special_tokens` have to be named by their ids: the grammar of a text knows none.
    """
    spell = _Speller(special_tokens)
    more = f"({spell.literal(syntax.separator)} call)*" if several else ""
    rules = [
        f"call: {' | '.join(f'call_{i}' for i in range(len(functions)))}",
        *(_call(syntax, spell, i, function, "call", syntax.head) for i, function in enumerate(functions)),
        *(f"args_{i}: %json {_schema(function)}" for i, function in enumerate(functions)),
    ]
    calls = f"{spell.literal(syntax.begin)} call {more} {spell.literal(syntax.end)}"
    if must_call:
        start = f"{_reasoning(spell, reasoning, is_reasoning_open)} {calls}"
    elif not syntax.trigger:
        start = "calls | text"
        rules += [f"calls: {calls}", f"text: TEXT\nTEXT: /(?s:.*)/ & ~/(?s:\\s*{_escaped(syntax.opening)}.*)/"]
    else:
        start = f"section{'*' if several else '?'} text"
        if syntax.begin:
            begin = syntax.begin.removeprefix(syntax.trigger)
            rules.append(f"section: before {spell.literal(begin)} call {more} {spell.literal(syntax.end)}")
        else:
            head = syntax.head.removeprefix(syntax.trigger)
            rules.append(f"section: before ({' | '.join(f'rest_{i}' for i in range(len(functions)))})")
            rules += [_call(syntax, spell, i, function, "rest", head) for i, function in enumerate(functions)]
        rules += spell.up_to("before", syntax.trigger)
        rules.append(spell.without("text", syntax.trigger))
    return "\n".join([f"start: {start}", *rules, *spell.rules]) + "\n"


def _call(syntax: CallSyntax, spell: "_Speller", i: int, function: Function, rule: str, head: str) -> str:
    return f"{rule}_{i}: {spell.literal(head + function.name + syntax.middle)} args_{i} {spell.literal(syntax.tail)}"


def _schema(function: Function) -> str:
    return json.dumps({**function.parameters, "x-guidance": _JSON_OPTIONS})


def _reasoning(spell: "_Speller", tags: ReasoningTags | None, is_open: bool) -> str:
    if tags is None:
        return ""
    spell.rules += spell.up_to("reasoning", tags.close)
    opened = f"reasoning {_GAP}"
    return opened if is_open else f"({spell.literal(tags.open)} {opened})?"


class _Speller:
    """Texts as Lark: strings, and tokens by their ids."""

    def __init__(self, special_tokens: Mapping[str, int]) -> None:
        self._special = special_tokens
        self.rules: list[str] = []

    def literal(self, text: str) -> str:
        """Nothing for no text."""
        if not self._special:
            return json.dumps(text) if text else ""
        pieces = re.split("(" + "|".join(map(re.escape, self._special)) + ")", text)
        return " ".join(
            f"<[{self._special[piece]}]>" if piece in self._special else json.dumps(piece) for piece in pieces if piece
        )

    def up_to(self, rule: str, marker: str) -> list[str]:
        """Any text, and the first `marker` behind it."""
        if marker in self._special:
            return [f"{rule}: ANY_{rule.upper()} {self.literal(marker)}", f"ANY_{rule.upper()}: /(?s:.*)/"]
        return [f"{rule}[lazy]: /(?s:.*){_escaped(marker)}/"]

    def without(self, rule: str, marker: str) -> str:
        """Any text that does not hold `marker`."""
        exclusion = "" if marker in self._special else f" & ~/(?s:.*{_escaped(marker)}.*)/"
        return f"{rule}: TEXT\nTEXT: /(?s:.*)/{exclusion}"


def _escaped(text: str) -> str:
    return _SPECIAL_IN_REGEX.sub(r"\\\1", text)

"""Calls of FunctionGemma and Gemma 4: call:name{key:value,…} between two marks, strings between two quote marks.

Keys are bare, values are quoted strings, numbers, true, false, null, objects and lists. Clients get JSON: it is
written while the call is read.
"""

import json
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from engine.text.parsers.json_calls import copy_string
from engine.text.parsers.machine import Machine, Malformed, Reading
from engine.text.parsers.syntax import CallSyntax

_MAX_NAME = 256
_MAX_DEPTH = 64
_ENDS = frozenset(",}]<")                          # of a bare value


@dataclass(frozen=True, slots=True)
class Marks:
    open: str
    close: str
    quote: str

    @property
    def all(self) -> tuple[str, ...]:
        return self.open, self.close, self.quote

    @property
    def syntax(self) -> CallSyntax:
        """With JSON for arguments, which the parser reads as well."""
        return CallSyntax(head=f"{self.open}call:", middle="", tail=self.close, trigger=self.open)


FUNCTION_GEMMA = Marks("<start_function_call>", "<end_function_call>", "<escape>")
GEMMA_4 = Marks("<|tool_call>", "<tool_call|>", '<|"|>')


class GemmaParser(Machine):
    def __init__(self, names: Collection[str], *, marks: Marks, hidden: Collection[str] = ()) -> None:
        super().__init__(hidden=hidden)
        self._names = names
        self._marks = marks

    def read(self) -> Reading[None]:
        is_open = False                            # a call was read, its closing mark was not
        while marker := (yield from self.scan(self._marks.open, self._marks.close)):
            self.mark()
            if marker == self._marks.close:
                if not is_open:
                    self.fall_back(marker)
                is_open = False
                continue
            is_open = False
            try:
                yield from self._call()
                yield from self.skip_space()
                is_open = True
            except Malformed:
                self.fall_back(marker)

    def _call(self) -> Reading[None]:
        yield from self.skip_space()
        yield from self.expect("call:")
        name = yield from self._bare_until("{")
        if name not in self._names:
            raise Malformed
        self.start_call(name)
        with suppress(Malformed):                  # then the rest is content
            yield from self._object(0)
        self.end_call()

    def _value(self, depth: int) -> Reading[None]:
        yield from self.skip_space()
        if depth > _MAX_DEPTH:
            raise Malformed
        if self.current == "{":
            yield from self._object(depth)
        elif self.current == "[":
            yield from self._list(depth)
        elif self.current == self._marks.quote[0]:
            yield from self._quoted()
        elif self.current == '"':
            yield from copy_string(self, self.arguments)
        else:
            yield from self._bare_value()
        yield from self.skip_space()

    def _object(self, depth: int) -> Reading[None]:
        yield from self.expect("{")
        self.arguments("{")
        yield from self.skip_space()
        while self.current != "}":
            yield from self._key()
            self.arguments(":")
            yield from self._value(depth + 1)
            yield from self._comma("}")
        self.arguments("}")
        yield

    def _list(self, depth: int) -> Reading[None]:
        yield from self.expect("[")
        self.arguments("[")
        yield from self.skip_space()
        while self.current != "]":
            yield from self._value(depth + 1)
            yield from self._comma("]")
        self.arguments("]")
        yield

    def _comma(self, end: str) -> Reading[None]:
        """Behind an element: a comma and another one, or `end`."""
        if self.current == end:
            return
        yield from self.expect(",")
        yield from self.skip_space()
        if self.current != end:
            self.arguments(",")

    def _key(self) -> Reading[None]:
        if self.current == self._marks.quote[0]:
            yield from self._quoted()
            yield from self.skip_space()
        elif self.current == '"':
            yield from copy_string(self, self.arguments)
            yield from self.skip_space()
        else:
            self.arguments(_json((yield from self._bare_until(":"))))
        yield from self.expect(":")

    def _quoted(self) -> Reading[None]:
        """A string: whatever stands between two quote marks."""
        quote, held = self._marks.quote, ""
        yield from self.expect(quote)
        self.arguments('"')
        while held != quote:
            if not self.current:
                raise Malformed
            held += self.current
            while not quote.startswith(held):
                self.arguments(_json(held[0])[1:-1])
                held = held[1:]
            if held == quote:
                self.arguments('"')
            yield

    def _bare_value(self) -> Reading[None]:
        raw = ""
        while self.current and self.current not in _ENDS:
            raw += self.current
            yield
        raw = raw.strip()
        if not raw or not self.current:            # at the end of the text it may be half a value
            raise Malformed
        self.arguments(raw if _is_scalar(raw) else _json(raw))

    def _bare_until(self, end: str) -> Reading[str]:
        word = ""
        while self.current != end:
            if not self.current or len(word) >= _MAX_NAME or self.current in _ENDS:
                raise Malformed
            word += self.current
            yield
        return word.strip()


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _is_scalar(raw: str) -> bool:
    """Whether `raw` is a JSON number, true, false or null."""
    try:
        return not isinstance(json.loads(raw, parse_constant=lambda _: []), str | list | dict)
    except ValueError:
        return False

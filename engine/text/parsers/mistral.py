"""Calls of Mistral: [TOOL_CALLS] [{"name": …, "arguments": {…}}, …]; since v11 [TOOL_CALLS]name[ARGS]{…} for each."""

from collections.abc import Collection
from contextlib import suppress

from engine.text.parsers.json_calls import copy_value, read_call
from engine.text.parsers.machine import Machine, Malformed, Reading
from engine.text.parsers.syntax import CallSyntax

OPEN, ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
MARKERS = (OPEN, ID, ARGUMENTS)
LIST_SYNTAX = CallSyntax(
    begin=OPEN + " [", head='{"name": "', middle='", "arguments": ', tail="}", separator=", ", end="]", trigger=OPEN
)
NAMED_SYNTAX = CallSyntax(head=OPEN, middle=ARGUMENTS, tail="", trigger=OPEN)
_MAX_NAME = 256


class MistralParser(Machine):
    def __init__(self, names: Collection[str], *, hidden: Collection[str] = ()) -> None:
        super().__init__(hidden=hidden)
        self._names = names

    def read(self) -> Reading[None]:
        held = ""
        while marker := (yield from self.scan(OPEN, held=held)):
            held = ""
            self.mark()
            num_calls = self.num_calls
            try:
                yield from self.skip_space()
                yield from self._list() if self.current == "[" else self._named_call()
            except Malformed:
                held = self.fall_back(marker if self.num_calls == num_calls else "", but="[")

    def _list(self) -> Reading[None]:
        yield from self.expect("[")
        while True:
            yield from self.skip_space()
            yield from read_call(self, self._names)
            self.mark()
            yield from self.skip_space()
            if self.current != ",":
                break
            yield
        if self.current == "]":
            yield

    def _named_call(self) -> Reading[None]:
        name = yield from self._word()
        if name not in self._names:
            raise Malformed
        if self.current == "[":
            yield
            if self.current == ID[1]:
                yield from self.expect(ID[1:])
                yield from self._word()
                yield from self.expect(ARGUMENTS)
            else:
                yield from self.expect(ARGUMENTS[1:])
        yield from self.skip_space()
        if self.current != "{":
            raise Malformed
        self.start_call(name)
        with suppress(Malformed):                  # then the rest is content
            yield from copy_value(self, self.arguments)
        self.end_call()

    def _word(self) -> Reading[str]:
        """A name or an id, without the space around it."""
        word = ""
        while self.current not in ("", "[", "{"):
            if len(word) >= _MAX_NAME:
                raise Malformed
            word += self.current
            yield
        return word.strip()

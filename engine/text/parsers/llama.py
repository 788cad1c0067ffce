"""Calls of Llama 3: {"name": …, "parameters": {…}}, several with ";" between, alone or behind <|python_tag|>.

A call without the tag counts only where the answer begins with it: an answer may well contain JSON.
"""

from collections.abc import Collection

from engine.text.parsers.json_calls import read_call
from engine.text.parsers.machine import Machine, Malformed, Reading
from engine.text.parsers.syntax import CallSyntax

TAG = "<|python_tag|>"
MARKERS = (TAG,)
SYNTAX = CallSyntax(head='{"name": "', middle='", "parameters": ', tail="}", separator="; ", opening='{"name"')


class LlamaParser(Machine):
    def __init__(self, names: Collection[str], *, hidden: Collection[str] = ()) -> None:
        super().__init__(hidden=hidden)
        self._names = names

    def read(self) -> Reading[None]:
        while self.current.isspace():
            self.content(self.current)
            yield
        if self.current == "{":
            yield from self._calls("")
        while marker := (yield from self.scan(TAG)):
            yield from self._calls(marker)

    def _calls(self, marker: str) -> Reading[None]:
        self.mark()
        while True:
            try:
                yield from self.skip_space()
                yield from read_call(self, self._names)
            except Malformed:
                self.fall_back(marker)
                return
            marker = ""
            self.mark()
            yield from self.skip_space()
            if self.current in (";", ","):
                yield
            elif self.current != "{":
                return

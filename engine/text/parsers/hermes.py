"""Calls of Hermes, Qwen and others: <tool_call>{"name": …, "arguments": {…}}</tool_call>, any number, amid content."""

from collections.abc import Collection

from engine.text.parsers.json_calls import read_call
from engine.text.parsers.machine import Machine, Malformed, Reading
from engine.text.parsers.syntax import CallSyntax

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MARKERS = (OPEN, CLOSE)
SYNTAX = CallSyntax(
    head=OPEN + '\n{"name": "', middle='", "arguments": ', tail="}\n" + CLOSE, separator="\n", trigger=OPEN
)


class HermesParser(Machine):
    def __init__(self, names: Collection[str], *, hidden: Collection[str] = ()) -> None:
        super().__init__(hidden=hidden)
        self._names = names

    def read(self) -> Reading[None]:
        is_open = False                            # a call was read, the end of its element was not
        while marker := (yield from self.scan(*MARKERS)):
            self.mark()
            if marker == CLOSE:
                if not is_open:
                    self.fall_back(marker)
                is_open = False
                continue
            is_open = False
            try:
                yield from self.skip_space()
                yield from read_call(self, self._names)
                yield from self.skip_space()
                is_open = True
            except Malformed:
                self.fall_back(marker)

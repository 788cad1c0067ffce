"""Machine: the base of all parsers. A coroutine that reads one character at a time.

`yield` in a reading method means: done with `current`, set the next one. At the end of the text `current` is "".
Reading methods leave `current` at the first character that they have not dealt with.
"""

from collections.abc import Callable, Collection, Generator, Iterator
from functools import partial
from typing import TypeVar

from engine.text.parsers.events import Arguments, CallEnd, CallStart, Content, Event

Result = TypeVar("Result")
Reading = Generator[None, None, Result]


class Malformed(Exception):
    """What is read is not what was expected. `current` is the character that is wrong, not dealt with."""


class Machine:
    """One answer's parser. Push its text, then finish; events are merged within each.

    White space next to calls is dropped, unless it stands between two pieces of content.
    """

    def __init__(self, *, hidden: Collection[str] = ()) -> None:
        """`hidden` are special tokens, in the text for the parser's sake: they never become content."""
        self.current = ""
        self.hidden = tuple(hidden)
        self.num_calls = 0
        self._consumed: list[str] = []             # characters dealt with since the mark
        self._events: list[Event] = []
        self._texts: list[str] = []                # of the event that is still growing
        self._grown: Callable[[str], Event] = Content
        self._space = ""                           # white space whose fate is open
        self._has_content = False
        self._is_behind_call = False               # with no content since
        self._arguments = partial(Arguments, 0)    # of the call that is being read
        self._reading = self._read_all()
        next(self._reading)

    def push(self, text: str) -> list[Event]:
        """The events that `text` completes. Text behind the end of a `finish` is not read."""
        for character in text:
            self._advance(character)
        return self._take()

    def finish(self) -> list[Event]:
        """The events that only the end of the text decides."""
        self._advance("")
        if not self._is_behind_call and self._space:
            self.grow(Content, self._space)
        self._space = ""
        return self._take()

    def read(self) -> Reading[None]:
        """Reads to the end of the text; `current` is its first character."""
        raise NotImplementedError

    # ---------------------------------------------------------------------------------------------------- emitting

    def emit(self, event: Event) -> None:
        self._close()
        self._events.append(event)

    def grow(self, kind: Callable[[str], Event], text: str) -> None:
        """Add `text` to the event of this kind that is growing: an event for each character would cost too much."""
        if kind != self._grown:
            self._close()
            self._grown = kind
        self._texts.append(text)

    def content(self, text: str) -> None:
        for character in text:
            if character.isspace():
                self._space += character
                continue
            is_first = self._is_behind_call and not self._has_content
            self.grow(Content, character if is_first else self._space + character)
            self._space = ""
            self._has_content = True
            self._is_behind_call = False

    def start_call(self, name: str) -> None:
        self.emit(CallStart(self.num_calls, name))
        self._arguments = partial(Arguments, self.num_calls)

    def arguments(self, text: str) -> None:
        self.grow(self._arguments, text)

    def end_call(self) -> None:
        self.emit(CallEnd(self.num_calls))
        self.num_calls += 1
        self._is_behind_call = True

    def mark(self) -> None:
        """From here on what is read may yet turn out to be content."""
        self._consumed.clear()

    def fall_back(self, marker: str = "", *, but: str = "") -> str:
        """All that was read since the mark is content, and so is the `marker` in front of it.

        If the last character is in `but`, it is left out and returned: for `scan` to begin with.
        """
        held = self._consumed.pop() if self._consumed and self._consumed[-1] in but else ""
        text = marker + "".join(self._consumed)
        for token in self.hidden:
            text = text.replace(token, "")
        self.content(text)
        self.mark()
        return held

    # ----------------------------------------------------------------------------------------------------- reading

    def scan(self, *markers: str, held: str = "") -> Reading[str]:
        """Content up to the first of `markers`; returns that, read, or "" at the end of the text.

        `held` is a character in front of `current` that may begin a marker.
        """
        first = {marker[0] for marker in (*markers, *self.hidden)}
        while self.current:
            if not held and self.current not in first:
                self.content(self.current)
                yield
                continue
            held += self.current
            while held and not _begins_any(held, markers) and not _begins_any(held, self.hidden):
                self.content(held[0])
                held = held[1:]
            yield
            if held in markers:
                return held
            if held in self.hidden:
                held = ""
        self.content(held)
        return ""

    def expect(self, text: str) -> Reading[None]:
        for character in text:
            if self.current != character:
                raise Malformed
            yield

    def skip_space(self) -> Reading[None]:
        while self.current.isspace():
            yield

    # ------------------------------------------------------------------------------------------------------ private

    def _read_all(self) -> Iterator[None]:
        yield
        yield from self.read()
        while True:
            yield

    def _advance(self, character: str) -> None:
        if self.current:
            self._consumed.append(self.current)
        self.current = character
        next(self._reading)

    def _take(self) -> list[Event]:
        self._close()
        events, self._events = self._events, []
        return events

    def _close(self) -> None:
        if self._texts:
            self._events.append(self._grown("".join(self._texts)))
            self._texts.clear()


def _begins_any(text: str, markers: tuple[str, ...]) -> bool:
    return any(marker.startswith(text) for marker in markers)

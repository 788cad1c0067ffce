"""Stop strings: the text of one request, watched for any of them, and let through as soon as none can begin in it."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text of one request, complete characters only, and the stop string that ended it, if one did."""

    text: str = ""
    stop: str | None = None


class StopChecker:
    """Reads text once, in order; its time does not depend on the length of the stop strings.

    Held back is only the longest suffix that may still become a stop string. With `include_stop` the stop string is
    part of the output, so that nothing needs holding back.
    """

    def __init__(self, stop: Sequence[str], *, include_stop: bool = False) -> None:
        self._matchers = [_Matcher(string) for string in stop]
        self._include_stop = include_stop
        self._held = ""                            # read, not let through: a proper prefix of some stop string

    def push(self, text: str, *, may_stop: bool = True) -> TextDelta:
        """The text that `text` lets through.

        The stop string reported is, of all that end within `text`, the one that begins first; of those, the first in
        the list. Unless `may_stop`, a stop string that ends within `text` counts as ordinary text.
        """
        if not self._matchers:
            return TextDelta(text)
        found = [
            (end - len(matcher.string), order)
            for order, matcher in enumerate(self._matchers)
            if (end := matcher.feed(text)) is not None
        ]
        known = self._held + text
        if found and may_stop:
            start, order = min(found)
            stop = self._matchers[order].string
            cut = len(self._held) + start + (len(stop) if self._include_stop else 0)
            return TextDelta(known[:cut], stop)
        held = 0 if self._include_stop else max(matcher.matched for matcher in self._matchers)
        self._held = known[len(known) - held:]
        return TextDelta(known[:len(known) - held])

    def flush(self) -> str:
        """What is still held back, once no more text comes."""
        held, self._held = self._held, ""
        return held


class _Matcher:
    """One stop string as a Knuth-Morris-Pratt automaton; `matched` characters of it end the text read so far."""

    def __init__(self, string: str) -> None:
        self.string = string
        self.matched = 0
        self._fallback = _borders(string)

    def feed(self, text: str) -> int | None:
        """Where in `text` the first occurrence ends (exclusive), which may have begun before; None if none does."""
        first = None
        for position, character in enumerate(text):
            if self.matched == len(self.string):
                self.matched = self._fallback[self.matched]
            while self.matched and self.string[self.matched] != character:
                self.matched = self._fallback[self.matched]
            if self.string[self.matched] == character:
                self.matched += 1
            if self.matched == len(self.string) and first is None:
                first = position + 1
        if self.matched == len(self.string):       # only a proper prefix may be held back
            self.matched = self._fallback[self.matched]
        return first


def _borders(string: str) -> list[int]:
    """For each length n, the longest proper prefix of string[:n] that is also its suffix."""
    borders = [0, 0]
    for character in string[1:]:
        length = borders[-1]
        while length and string[length] != character:
            length = borders[length]
        borders.append(length + (string[length] == character))
    return borders

"""AnswerParser: one answer's text split into reasoning, content and calls, each by its own parser."""

from engine.text.parsers.events import Arguments, CallEnd, CallStart, Content, Event, merged
from engine.text.parsers.machine import Machine
from engine.text.parsers.reasoning import ReasoningParser

_OF_CALLS = (CallStart, Arguments, CallEnd)


class AnswerParser:
    """The calls are looked for in what the reasoning leaves; either parser may be missing."""

    def __init__(
        self, reasoning: ReasoningParser | None = None, calls: Machine | None = None, *, max_calls: int | None = None
    ) -> None:
        """Calls beyond `max_calls` are left out."""
        self._reasoning = reasoning
        self._calls = calls
        self._max_calls = max_calls

    def push(self, text: str) -> list[Event]:
        events: list[Event] = [Content(text)] if self._reasoning is None else self._reasoning.push(text)
        return self._allowed(self._with_calls(events))

    def finish(self) -> list[Event]:
        events = [] if self._reasoning is None else self._reasoning.finish()
        events = self._with_calls(events)
        return self._allowed(events if self._calls is None else events + self._calls.finish())

    def parse(self, text: str) -> list[Event]:
        """The events of a whole answer."""
        return merged(self.push(text) + self.finish())

    def _with_calls(self, events: list[Event]) -> list[Event]:
        if self._calls is None:
            return events
        found: list[Event] = []
        for event in events:
            found += self._calls.push(event.text) if isinstance(event, Content) else [event]
        return found

    def _allowed(self, events: list[Event]) -> list[Event]:
        limit = self._max_calls
        if limit is not None:
            events = [event for event in events if not (isinstance(event, _OF_CALLS) and event.index >= limit)]
        return merged(events)

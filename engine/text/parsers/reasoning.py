"""Reasoning in front of an answer: <think>…</think> and its kin. The white space around the tags belongs to nothing."""

from collections.abc import Collection
from dataclasses import dataclass

from engine.text.parsers.events import Reasoning
from engine.text.parsers.machine import Machine, Malformed, Reading


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """How a family marks its reasoning."""

    open: str
    close: str
    tokens: tuple[str, ...]                        # of the two, those that may be special tokens

    def opened_by(self, prompt: str) -> bool:
        """Whether the answer to `prompt` begins within the reasoning, as some chat templates have it."""
        return prompt.rstrip().endswith(self.open.rstrip())


class ReasoningParser(Machine):
    """Splits reasoning from what follows it, which it gives as content. Only the first thing can be reasoning."""

    def __init__(
        self, tags: ReasoningTags, *, is_open: bool, hidden: Collection[str] = (), passes: Collection[str] = ()
    ) -> None:
        """`passes` are hidden in the reasoning only: whoever reads the content deals with them there."""
        super().__init__(hidden=hidden)
        self._hidden_in_reasoning = (*hidden, *passes)
        self._tags = tags
        self._is_open = is_open                    # the prompt has opened it
        self._spaces = ""

    def read(self) -> Reading[None]:
        if self._is_open or (yield from self._reads_open()):
            yield from self.skip_space()
            yield from self._reasoning()
            yield from self.skip_space()
        yield from self.scan()

    def _reads_open(self) -> Reading[bool]:
        self.mark()
        try:
            yield from self.skip_space()
            yield from self.expect(self._tags.open)
        except Malformed:
            self.fall_back()
            return False
        return True

    def _reasoning(self) -> Reading[None]:
        held = ""
        markers = (self._tags.close, *self._hidden_in_reasoning)
        while self.current:
            held += self.current
            while held and not any(marker.startswith(held) for marker in markers):
                self._reason(held[0])
                held = held[1:]
            yield
            if held == self._tags.close:
                return
            if held in self._hidden_in_reasoning:
                held = ""
        for character in held:
            self._reason(character)

    def _reason(self, character: str) -> None:
        if character.isspace():
            self._spaces += character
        else:
            self.grow(Reasoning, self._spaces + character)
            self._spaces = ""
